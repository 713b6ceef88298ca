//! The group upload.cdi.kubevirt.io, version v1beta1: `UploadTokenRequest`, which is answered with a token when it is
//! created, and kept nowhere. Not here: what is in the token.

use crate::resource::{Confidential, ObjectMeta, resource};

/// Group and version as objects write them.
pub const API_VERSION: &str = "upload.cdi.kubevirt.io/v1beta1";
/// Kind as objects write it.
pub const KIND: &str = "UploadTokenRequest";
/// Name in paths of the API.
pub const PLURAL: &str = "uploadtokenrequests";

resource! {
    /// A wish to upload to a claim of the same namespace.
    pub struct UploadTokenRequest {
        /// `upload.cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `UploadTokenRequest`.
        pub kind: String,
        /// Any name.
        pub metadata: ObjectMeta,
        /// The desired token.
        pub spec: UploadTokenRequestSpec,
        /// The answer.
        pub status: Option<UploadTokenRequestStatus>,
    }

    /// The desired token.
    pub struct UploadTokenRequestSpec {
        /// The claim; it need not be there yet.
        pub pvc_name: String,
    }

    /// The answer.
    pub struct UploadTokenRequestStatus {
        /// For the header `Authorization: Bearer`; good for five minutes.
        pub token: Option<Confidential>,
    }
}

impl UploadTokenRequest {
    /// A wish to upload to this claim.
    pub fn of(claim: &str) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            metadata: ObjectMeta {
                generate_name: Some("token-for-upload-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: UploadTokenRequestSpec { pvc_name: claim.to_owned() },
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_written_and_answers_read() {
        let written = serde_json::to_value(UploadTokenRequest::of("disk")).unwrap();
        assert_eq!(
            written,
            json!({
                "apiVersion": "upload.cdi.kubevirt.io/v1beta1",
                "kind": "UploadTokenRequest",
                "metadata": {"generateName": "token-for-upload-"},
                "spec": {"pvcName": "disk"},
            })
        );
        let answer = json!({"spec": {"pvcName": "disk"}, "status": {"token": "a.b.c"}});
        let answer: UploadTokenRequest = serde_json::from_value(answer).unwrap();
        let token = answer.status.clone().and_then(|status| status.token).unwrap();
        assert_eq!(token.0, "a.b.c");
        assert!(!format!("{answer:?}").contains("a.b.c"), "tokens are not shown");
    }
}
