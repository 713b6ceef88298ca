//! Power commands and questions to a guest's agent, each one call to its launcher.

use std::sync::Arc;
use std::time::Duration;

use api::launcher::{Answer as Reply, FREEZE_MAX, Request, State, Status};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use serve::route::{Answer, Call};

use super::{Refused, flag, key, picture, pointer};
use crate::error::{Error, Kind};
use crate::guests::controller::Controller;
use crate::guests::osinfo::{self, Answers};
use crate::guests::talk::{Talk, unexpected};

/// Methods and names of all commands.
pub(super) const COMMANDS: [(&str, &str); 10] = [
    ("PUT", "pause"),
    ("PUT", "unpause"),
    ("PUT", "softreboot"),
    ("PUT", "reset"),
    ("PUT", "freeze"),
    ("PUT", "unfreeze"),
    ("GET", "guestosinfo"),
    ("GET", "userlist"),
    ("GET", "filesystemlist"),
    ("GET", "vnc/screenshot"),
];
/// Longest body of a command.
const BODY_MAX: usize = 64 << 10;
/// The default of the time after which a freeze ends by itself.
const FREEZE_TIME: Duration = Duration::from_secs(300);
/// libvirt's error for a freeze of a guest without an agent, which clients find in the message.
const NO_AGENT: &str =
    "Internal error occurred: Guest agent is not responding: QEMU guest agent is not connected";

/// The body of a freeze.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Freeze {
    unfreeze_timeout: Option<String>,
}

/// Does a command.
pub(super) async fn run(
    controller: &Arc<Controller>,
    name: &'static str,
    call: &mut Call,
) -> Result<Answer, Refused> {
    let body = call.bytes(BODY_MAX).await.map_err(|refusal| Refused::bad(refusal.to_string()))?;
    let (_, pod) = controller.pod_of(&key(call)).map_err(|error| Refused::missing(error.chain()))?;
    let (mut talk, _) = Talk::open(&pod).await?;
    let Reply::Status(status) = talk.call(Request::Status).await? else {
        return Err(unexpected().into());
    };
    check(name, &status)?;
    let list = |value: Option<Value>| {
        let value =
            value.ok_or_else(|| Error::new(Kind::Launcher, "the guest agent's answer cannot be read"));
        Ok(serve::route::json(StatusCode::OK, value?.to_string()))
    };
    let done = || serve::route::json(StatusCode::OK, "{}");
    if name == "vnc/screenshot" && flag(call, "moveCursor") {
        pointer::wake(pod).await;
    }
    match name {
        "guestosinfo" => list(Some(osinfo::everything(&answers(&mut talk).await))),
        "userlist" => list(osinfo::users(&talk.agent(osinfo::USERS).await?)),
        "filesystemlist" => list(osinfo::filesystems(&talk.agent(osinfo::FILESYSTEMS).await?)),
        "vnc/screenshot" => {
            let Reply::Screenshot { content, .. } = talk.call(Request::Screenshot).await? else {
                return Err(unexpected().into());
            };
            let picture = STANDARD.decode(content).ok().and_then(picture::png);
            let picture = picture
                .ok_or_else(|| Error::new(Kind::Launcher, "the screenshot of the guest is not an image"))?;
            Ok(serve::route::with_type(StatusCode::OK, "image/png", picture.into()))
        }
        "freeze" => {
            let freeze: Freeze = if body.is_empty() {
                Freeze::default()
            } else {
                serde_json::from_slice(&body).map_err(|error| Refused::bad(error.to_string()))?
            };
            let time = match freeze.unfreeze_timeout.as_deref() {
                None => FREEZE_TIME,
                Some(text) => api::duration::parse(text)
                    .ok_or_else(|| Refused::bad("unfreezeTimeout is not a duration like 5m0s"))?,
            };
            talk.call(Request::Freeze { seconds: time.as_secs().min(FREEZE_MAX) }).await?;
            Ok(done())
        }
        _ => {
            let request = match name {
                "pause" => Request::Pause,
                "unpause" => Request::Unpause,
                "unfreeze" => Request::Thaw,
                "softreboot" => Request::SoftReboot,
                _ => Request::Reset,
            };
            talk.call(request).await?;
            Ok(done())
        }
    }
}

/// Whether a guest in this state can do it, in upstream's words.
fn check(name: &str, status: &Status) -> Result<(), Refused> {
    match (name, status.state) {
        (_, State::Waiting | State::Starting | State::Ended) => Err(Refused::conflict("VMI is not running")),
        ("pause", State::Paused) => Err(Refused::conflict("VMI is already paused")),
        ("unpause", State::Running | State::Stopping) => Err(Refused::conflict("VMI is not paused")),
        ("softreboot" | "reset", State::Paused) => Err(Refused::conflict("VMI is paused")),
        // As upstream: its launcher answers so.
        ("freeze" | "unfreeze", _) if !status.agent => Err(Refused::internal(NO_AGENT)),
        ("guestosinfo" | "userlist" | "filesystemlist", _) if !status.agent => {
            Err(Refused::conflict("VMI does not have guest agent connected"))
        }
        _ => Ok(()),
    }
}

/// All reports of the guest's agent; missing ones are left out.
async fn answers(talk: &mut Talk) -> Answers {
    Answers {
        version: talk.agent(osinfo::VERSION).await.ok(),
        os: talk.agent(osinfo::OS_INFO).await.ok(),
        host_name: talk.agent(osinfo::HOST_NAME).await.ok(),
        timezone: talk.agent(osinfo::TIMEZONE).await.ok(),
        users: talk.agent(osinfo::USERS).await.ok(),
        filesystems: talk.agent(osinfo::FILESYSTEMS).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: State, agent: bool) -> Status {
        let text =
            serde_json::json!({"state": state, "reason": null, "uid": null, "exit": null, "agent": agent});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_guest_in_another_state_refuses_with_upstreams_words() {
        for (name, state, agent, refused) in [
            ("pause", State::Running, false, None),
            ("pause", State::Paused, false, Some("VMI is already paused")),
            ("unpause", State::Running, false, Some("VMI is not paused")),
            ("unpause", State::Paused, false, None),
            ("reset", State::Starting, false, Some("VMI is not running")),
            ("guestosinfo", State::Running, false, Some("VMI does not have guest agent connected")),
            ("guestosinfo", State::Running, true, None),
            ("freeze", State::Ended, true, Some("VMI is not running")),
            ("freeze", State::Running, true, None),
        ] {
            let answer = check(name, &status(state, agent)).err().map(|refused| refused.message);
            assert_eq!(answer.as_deref(), refused, "{name} {state:?}");
        }
        for name in ["freeze", "unfreeze"] {
            let refused = check(name, &status(State::Running, false)).unwrap_err();
            assert_eq!((refused.status.as_u16(), refused.message.as_str()), (500, NO_AGENT), "{name}");
        }
    }
}
