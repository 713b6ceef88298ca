//! HTTP and HTTPS.
