//! The one document on standard output, and the exit code: the only place where errors become CNI's.

use serde_json::{Value, json};

use crate::error::Error;
use crate::protocol::Version;

/// The output of the process and its exit status.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    /// The document; DEL, CHECK, GC and STATUS have none when they succeed.
    pub(crate) document: Option<Value>,
    /// Whether the exit code is zero.
    pub(crate) success: bool,
}

/// Turns what happened into the answer. An error before the version was known is answered in the newest.
pub(crate) fn answer(result: Result<Option<Value>, Error>, version: Option<Version>) -> Answer {
    match result {
        Ok(document) => Answer { document, success: true },
        Err(error) => {
            let mut document = json!({
                "cniVersion": version.unwrap_or(Version::NEWEST).as_str(),
                "code": error.kind().code(),
                "msg": error.to_string(),
            });
            let details = error.details();
            if !details.is_empty() {
                document["details"] = Value::String(details);
            }
            Answer { document: Some(document), success: false }
        }
    }
}
