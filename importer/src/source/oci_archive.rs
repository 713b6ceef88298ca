//! an OCI image archive in a local tar file.
