"""The disk tier: exports of one namespace as files that outlive the process."""
