//! S3, by aws-sdk-s3.
