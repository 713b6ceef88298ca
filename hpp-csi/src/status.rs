//! The one place where an error becomes a gRPC status. Codes: CSI 1.12, "Error Scheme", and what csi-provisioner makes
//! of them: after RESOURCE_EXHAUSTED a claim may go to another node, after UNAVAILABLE it never does.

use tonic::{Code, Status};

use crate::error::{Error, Kind};

/// Longest message of a status in bytes; headers are bounded by peers.
const MESSAGE_MAX: usize = 1024;

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            Kind::Invalid => Code::InvalidArgument,
            Kind::NotFound => Code::NotFound,
            Kind::Exists => Code::AlreadyExists,
            Kind::Exhausted => Code::ResourceExhausted,
            Kind::Precondition | Kind::NotReady => Code::FailedPrecondition,
            Kind::Busy => Code::Aborted,
            Kind::OutOfRange => Code::OutOfRange,
            Kind::Unsupported => Code::Unimplemented,
            Kind::Overloaded => Code::Unavailable,
            Kind::Internal => Code::Internal,
        };
        let mut message = error.chain();
        if let Some((end, _)) = message.char_indices().find(|(at, _)| *at >= MESSAGE_MAX) {
            message.truncate(end);
        }
        Status::new(code, message)
    }
}
