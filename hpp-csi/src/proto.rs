//! The wire types of CSI 1.12, generated from `proto/csi.proto`: the one fenced module. What they mean to us is
//! [`crate::request`]'s.

#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]

tonic::include_proto!("csi.v1");
