//! `virtualmachines/NAME/why`: in words, why a VM does not run, or where it does. The words are those of the controllers'
//! plans ([`crate::compute::why`]); nothing is changed.

use std::sync::Arc;

use cluster::Key;
use http::StatusCode;
use serde_json::json;
use serve::route::{Call, json as json_answer};

use super::Site;
use super::status::{Answered, Refusal};
use crate::compute::why;

/// Answers a request.
pub(super) async fn handle(site: Arc<Site>, call: Call) -> Answered {
    site.gate.admit(&call, "virtualmachines", "why").await?;
    let name = call.parameter("name");
    let explained = why::explain(&site.client, &Key::new(call.parameter("namespace"), name)).await?;
    let why::Explanation { running, reasons } =
        explained.ok_or_else(|| Refusal::absent("virtualmachine", name))?;
    Ok(json_answer(StatusCode::OK, json!({"running": running, "reasons": reasons}).to_string()))
}
