//! The webhook as a function: from an AdmissionReview and the pool to its answer.
//!
//! ```text
//!  bytes ─► Review ─► Draft: what the object asks for ─► decide: against the pool and the policy ─► Reply
//!           a uid       pure, without the pool            all of it or nothing; a dry run nothing
//! ```
//!
//! Objects are raw JSON. What has another shape than expected is left alone; an answer that allows has a patch that can
//! be applied, or none.
//!
//! Not here: the selector by which the API server chooses what is reviewed ([`crate::namespaces`]).

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::error::{Error, Kind, Result};
use crate::fields::{self, Address, INTERFACES, LEGACY_FINALIZER, NETWORK_STATUS, NETWORKS, STAMP, TEMPLATE};
use crate::namespaces::Policy;
use api::net::Mac;
use api::net::pool::{Owner, Pool, Stamp, View};

/// Most interfaces or networks of one object: one object must not empty the pool.
pub const INTERFACES_MAX: usize = 256;
/// Longest uid of a review that is answered.
const UID_MAX: usize = 256;
/// Characters of a user's text that an answer repeats.
const QUOTED_MAX: usize = 64;

/// Which webhook was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `mutatevirtualmachines.kubemacpool.io`.
    Machines,
    /// `mutatepods.kubemacpool.io`.
    Pods,
}

/// A review that can be answered.
#[derive(Debug)]
pub struct Review {
    uid: String,
    version: &'static str,
    draft: Draft,
}

/// The request of an object.
#[derive(Debug)]
enum Draft {
    /// Nothing.
    Pass,
    /// Something that cannot be.
    Refuse(Error),
    /// Changes that need no address.
    Patch(Vec<Value>),
    /// Addresses.
    Want(Box<Wants>),
}

#[derive(Debug)]
struct Wants {
    owner: Owner,
    dry_run: bool,
    /// The object's metadata, if it is to be stamped.
    stamp: Option<StampAt>,
    /// The stamp that it has already: the next one is later, whatever clocks show.
    stamped: Option<Stamp>,
    /// Addresses that it has already, and keeps.
    kept: Vec<Mac>,
    /// Those of them that must be written into it again, and where.
    restored: Vec<(usize, Mac)>,
    wishes: Vec<Wish>,
    /// For a pod: its networks, which become an annotation's text.
    networks: Option<Vec<Value>>,
}

/// How a stamp gets into an object.
#[derive(Clone, Copy, Debug)]
enum StampAt {
    /// There are annotations.
    Annotations,
    /// There are none yet.
    Metadata,
}

#[derive(Clone, Copy, Debug)]
enum Wish {
    /// Any address, for the interface or network at this place.
    Any(usize),
    /// This one, which is new to the object; and what the interface had before.
    Given(usize, Mac, Option<Mac>),
    /// This one too, at an interface that is none of our business: it is kept from others.
    Noted(Mac),
}

/// The answer of the replica that owns the address's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is free, and kept for this object now.
    Free,
    /// Another object has it.
    Taken,
}

/// The inputs of a decision other than the object and the pool.
#[derive(Debug)]
pub struct Circumstances<'a> {
    /// The policy for an address in use.
    pub policy: Policy,
    /// Now, for the object's annotation.
    pub stamp: Stamp,
    /// Now, since the program's start.
    pub now: Duration,
    /// Whether addresses may be given out at all.
    pub may_give: bool,
    /// Answers of other replicas about addresses in their blocks.
    pub answers: &'a HashMap<Mac, Answer>,
}

/// The answer.
#[derive(Debug)]
pub struct Reply {
    uid: String,
    version: &'static str,
    /// Why it is refused; else it is allowed.
    refused: Option<Error>,
    patch: Vec<Value>,
    warnings: Vec<String>,
    duplicates: Vec<Mac>,
}

impl Review {
    /// Reads a review. Its size is the caller's to bound.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no uid to answer to.
    pub fn read(hook: Hook, bytes: &[u8]) -> Result<Self> {
        let none = |why: String| Error::new(Kind::Invalid, format!("not an AdmissionReview: {why}"));
        let document: Value = serde_json::from_slice(bytes).map_err(|error| none(error.to_string()))?;
        let request =
            document.get("request").ok_or_else(|| none("the field request is missing".to_owned()))?;
        let uid = request.get("uid").and_then(Value::as_str);
        let uid = uid.filter(|uid| !uid.is_empty() && uid.len() <= UID_MAX);
        let uid = uid.ok_or_else(|| none("request.uid is missing or too long".to_owned()))?.to_owned();
        let version = match document.get("apiVersion").and_then(Value::as_str) {
            Some("admission.k8s.io/v1beta1") => "admission.k8s.io/v1beta1",
            Some(_) | None => "admission.k8s.io/v1",
        };
        let draft = match hook {
            Hook::Machines => machine(request, &uid),
            Hook::Pods => pod(request, &uid),
        };
        Ok(Self { uid, version, draft })
    }

    /// The object that asks for addresses, and whether only to try.
    pub fn owner(&self) -> Option<(&Owner, bool)> {
        match &self.draft {
            Draft::Want(wants) => Some((&wants.owner, wants.dry_run)),
            Draft::Pass | Draft::Refuse(_) | Draft::Patch(_) => None,
        }
    }

    /// The addresses that the object brings and did not have before.
    pub fn given(&self) -> Vec<Mac> {
        let Draft::Want(wants) = &self.draft else { return Vec::new() };
        let given = wants.wishes.iter().filter_map(|wish| match wish {
            Wish::Given(_, mac, _) | Wish::Noted(mac) => Some(*mac),
            Wish::Any(_) => None,
        });
        given.collect()
    }

    /// Decides. Addresses are promised to the object in the pool, unless it is refused or a dry run.
    pub fn decide(self, pool: &mut Pool, circumstances: &Circumstances<'_>) -> Reply {
        let mut reply = Reply {
            uid: self.uid,
            version: self.version,
            refused: None,
            patch: Vec::new(),
            warnings: Vec::new(),
            duplicates: Vec::new(),
        };
        match self.draft {
            Draft::Pass => {}
            Draft::Refuse(error) => reply.refused = Some(error),
            Draft::Patch(patch) => reply.patch = patch,
            Draft::Want(wants) => {
                if let Err(error) = wants.decide(pool, circumstances, &mut reply) {
                    reply.patch.clear();
                    reply.warnings.clear();
                    reply.refused = Some(error);
                }
            }
        }
        reply
    }
}

impl Wants {
    fn decide(self, pool: &mut Pool, circumstances: &Circumstances<'_>, reply: &mut Reply) -> Result<()> {
        if let Some(guest) = &self.owner.guest
            && pool.knows(&Owner::new(View::Machine, &self.owner.namespace, guest))
        {
            // The machine's addresses were decided with the machine.
            return Ok(());
        }
        let given = self.wishes.iter().filter_map(|wish| match wish {
            Wish::Given(_, mac, _) | Wish::Noted(mac) => Some(*mac),
            Wish::Any(_) => None,
        });
        // Addresses that another interface of the same object must not have.
        let mut taken: Vec<Mac> = self.kept.iter().copied().chain(given).collect();
        let mut written = self.restored.clone();
        let mut promised = Vec::new();
        let mut last = None;
        for wish in &self.wishes {
            let mut find = |taken: &mut Vec<Mac>| {
                if !circumstances.may_give {
                    let message = "macpool cannot reach the API server and assigns no MAC addresses until it does; retry";
                    return Err(Error::new(Kind::Unreachable, message));
                }
                let found = pool.find(taken, circumstances.now)?;
                taken.push(found);
                last = Some(found);
                Ok(found)
            };
            match *wish {
                Wish::Any(place) => {
                    let found = find(&mut taken)?;
                    written.push((place, found));
                    promised.push(found);
                }
                Wish::Noted(mac) => promised.push(mac),
                Wish::Given(place, mac, before) => {
                    let elsewhere = circumstances.answers.get(&mac) == Some(&Answer::Taken);
                    let other = pool.other_holder(mac, &self.owner);
                    if !elsewhere && other.is_none() {
                        promised.push(mac);
                        continue;
                    }
                    reply.duplicates.push(mac);
                    // The name of an object is revealed to users of its own namespace only.
                    let by = other.filter(|other| other.namespace == self.owner.namespace);
                    let by = by.map_or_else(String::new, |other| format!(" by {other}"));
                    match circumstances.policy {
                        Policy::Allow => {
                            reply.warnings.push(format!("MAC address {mac} is in use{by}"));
                            promised.push(mac);
                        }
                        Policy::Reject => {
                            let message = format!(
                                "duplicate MAC address {mac}: it is in use{by}; set another one, or leave macAddress out"
                            );
                            return Err(Error::new(Kind::Taken, message));
                        }
                        Policy::Rewrite => {
                            // Applied again, it keeps what it was given instead the first time.
                            let found = match before.filter(|mac| !taken.contains(mac)) {
                                Some(before) => {
                                    taken.push(before);
                                    before
                                }
                                None => find(&mut taken)?,
                            };
                            reply
                                .warnings
                                .push(format!("MAC address {mac} is in use{by}; it was replaced by {found}"));
                            written.push((place, found));
                            promised.push(found);
                        }
                    }
                }
            }
        }
        let stamp = circumstances.stamp.max(self.stamped.map_or(0, |before| before.saturating_add(1)));
        let stamped = self.stamp.map(|at| stamp_patch(at, stamp));
        reply.patch = stamped.into_iter().chain(address_patches(self.networks, &written)).collect();
        if !self.dry_run {
            for mac in promised {
                pool.reserve(&self.owner, mac, stamp, circumstances.now);
            }
            if let Some(last) = last {
                pool.advance(last);
            }
        }
        Ok(())
    }
}

fn stamp_patch(at: StampAt, stamp: Stamp) -> Value {
    let text = fields::stamp_text(stamp);
    match at {
        StampAt::Annotations => {
            let path = format!("/metadata/annotations/{}", STAMP.replace('/', "~1"));
            json!({"op": "add", "path": path, "value": text})
        }
        StampAt::Metadata => json!({"op": "add", "path": "/metadata/annotations", "value": {STAMP: text}}),
    }
}

/// The addresses as changes of a guest's interfaces, or of a pod's annotation.
fn address_patches(networks: Option<Vec<Value>>, written: &[(usize, Mac)]) -> Vec<Value> {
    let Some(mut networks) = networks else {
        let patch = |(index, mac): &(usize, Mac)| {
            let path = format!("{TEMPLATE}{INTERFACES}/{index}/macAddress");
            json!({"op": "add", "path": path, "value": mac.to_string()})
        };
        return written.iter().map(patch).collect();
    };
    if written.is_empty() {
        return Vec::new();
    }
    for (index, mac) in written {
        if let Some(network) = networks.get_mut(*index).and_then(Value::as_object_mut) {
            network.insert("mac".to_owned(), Value::String(mac.to_string()));
        }
    }
    let path = format!("/metadata/annotations/{}", NETWORKS.replace('/', "~1"));
    let text = Value::Array(networks).to_string();
    vec![json!({"op": "replace", "path": path, "value": text})]
}

/// The common parts of every request.
struct Request<'a> {
    object: &'a Value,
    old: Option<&'a Value>,
    creates: bool,
    owner: Owner,
    dry_run: bool,
}

impl<'a> Request<'a> {
    /// `None` where there is nothing to do: another operation, a subresource, no object.
    fn read(request: &'a Value, view: View, uid: &str) -> Option<Self> {
        let text = |key: &str| request.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let creates = match text("operation")? {
            "CREATE" => true,
            "UPDATE" => false,
            _ => return None,
        };
        let object = request.get("object").filter(|object| object.is_object())?;
        if text("subResource").is_some() {
            return None;
        }
        let namespace = text("namespace").or(fields::metadata(object, "namespace")).unwrap_or_default();
        let owner = match fields::metadata(object, "name").or(text("name")) {
            Some(name) => Owner::new(view, namespace, name),
            None => {
                let prefix = fields::metadata(object, "generateName").unwrap_or_default();
                Owner::unnamed(view, namespace, prefix, uid)
            }
        };
        let old = request.get("oldObject").filter(|old| old.is_object());
        let dry_run = request.get("dryRun").and_then(Value::as_bool) == Some(true);
        Some(Self { object, old, creates, owner, dry_run })
    }
}

fn refuse(message: String) -> Draft {
    Draft::Refuse(Error::new(Kind::Invalid, message))
}

/// A user's text, as far as it is repeated.
fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("\"{}\"", short.escape_debug())
}

/// An address as given by a user.
fn given(text: &str, place: &str) -> std::result::Result<Mac, Draft> {
    match Mac::parse(text) {
        None => Err(refuse(format!("{place}: {} is not a MAC address", quoted(text)))),
        Some(mac) if !mac.is_usable() => {
            Err(refuse(format!("{place}: {mac} is zero or a multicast address, which no interface can have")))
        }
        Some(mac) => Ok(mac),
    }
}

fn machine(request: &Value, uid: &str) -> Draft {
    let Some(request) = Request::read(request, View::Machine, uid) else { return Draft::Pass };
    let Some(metadata) = request.object.get("metadata").and_then(Value::as_object) else {
        return Draft::Pass;
    };
    if metadata.get("deletionTimestamp").is_some_and(|at| !at.is_null()) {
        return released(metadata.get("finalizers"));
    }
    if !request.creates && !request.old.is_some_and(|old| changed(old, request.object)) {
        return Draft::Pass;
    }
    let stamp = match metadata.get("annotations") {
        None | Some(Value::Null) => Some(StampAt::Metadata),
        Some(Value::Object(_)) => Some(StampAt::Annotations),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => None,
    };
    let interfaces = fields::interfaces(request.object.pointer(TEMPLATE));
    if interfaces.len() > INTERFACES_MAX {
        return refuse(format!("{} interfaces; {INTERFACES_MAX} is the limit", interfaces.len()));
    }
    let old = fields::interfaces(request.old.and_then(|old| old.pointer(TEMPLATE)));
    let had: Vec<Mac> = old.iter().filter_map(fields::Interface::mac).collect();
    let mut names = std::collections::HashSet::new();
    let mut own: Vec<Mac> = Vec::new();
    // Those of interfaces that are none of our business.
    let mut beside: Vec<Mac> = Vec::new();
    let mut kept = Vec::new();
    let mut wishes = Vec::new();
    for interface in &interfaces {
        if let Some(name) = interface.name
            && !names.insert(name)
        {
            return refuse(format!("two interfaces have the name {}", quoted(name)));
        }
        if !interface.managed {
            let mac = interface.mac().filter(|mac| mac.is_usable());
            beside.extend(mac);
            wishes.extend(mac.filter(|mac| !had.contains(mac)).map(Wish::Noted));
            continue;
        }
        let Address::Text(text) = interface.address else { continue };
        let place = format!("spec.template.spec.domain.devices.interfaces[{}].macAddress", interface.index);
        let mac = match given(text, &place) {
            Ok(mac) => mac,
            Err(refused) => return refused,
        };
        if own.contains(&mac) {
            return refuse(format!("two interfaces have the MAC address {mac}"));
        }
        own.push(mac);
        if had.contains(&mac) {
            kept.push(mac);
        } else {
            wishes.push(Wish::Given(interface.index, mac, before(&old, interface)));
        }
    }
    // Without an address given, an interface keeps what it had, unless another interface has that now.
    let mut restored = Vec::new();
    for interface in interfaces.iter().filter(|one| one.managed && one.address == Address::Blank) {
        match before(&old, interface).filter(|mac| !own.contains(mac) && !beside.contains(mac)) {
            Some(mac) => {
                own.push(mac);
                kept.push(mac);
                restored.push((interface.index, mac));
            }
            None => wishes.push(Wish::Any(interface.index)),
        }
    }
    let stamped = request.old.and_then(|old| fields::annotation(old, STAMP)).and_then(fields::stamp_of);
    let Request { owner, dry_run, .. } = request;
    Draft::Want(Box::new(Wants { owner, dry_run, stamp, stamped, kept, restored, wishes, networks: None }))
}

/// The previous address of an interface of this name.
fn before(old: &[fields::Interface<'_>], interface: &fields::Interface<'_>) -> Option<Mac> {
    let same = old.iter().filter(|old| old.name.is_some() && old.name == interface.name);
    same.filter_map(fields::Interface::mac).find(|mac| mac.is_usable())
}

/// Whether an update changes what the stamp is for.
fn changed(old: &Value, new: &Value) -> bool {
    let paths = ["/spec", "/metadata/labels", "/metadata/annotations"];
    paths.iter().any(|path| old.pointer(path) != new.pointer(path))
}

/// A machine that is being deleted is let go.
fn released(finalizers: Option<&Value>) -> Draft {
    let finalizers = finalizers.and_then(Value::as_array).into_iter().flatten().enumerate();
    let ours = finalizers.filter(|(_, finalizer)| finalizer.as_str() == Some(LEGACY_FINALIZER));
    let remove = |(index, _)| json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")});
    let mut patch: Vec<Value> = ours.map(remove).collect();
    // From the last on: each removal moves those behind it.
    patch.reverse();
    if patch.is_empty() { Draft::Pass } else { Draft::Patch(patch) }
}

fn pod(request: &Value, uid: &str) -> Draft {
    let Some(mut request) = Request::read(request, View::Pod, uid) else { return Draft::Pass };
    if !request.creates || fields::annotation(request.object, NETWORK_STATUS).is_some() {
        return Draft::Pass;
    }
    let Some(networks) = fields::networks(request.object) else { return Draft::Pass };
    if networks.len() > INTERFACES_MAX {
        return refuse(format!("{} networks; {INTERFACES_MAX} is the limit", networks.len()));
    }
    request.owner.guest = fields::guest_of(request.object).map(Into::into);
    let mut wishes = Vec::new();
    for (index, network) in networks.iter().enumerate() {
        let Some(network) = network.as_object() else { continue };
        match network.get("mac") {
            None | Some(Value::Null) => wishes.push(Wish::Any(index)),
            Some(Value::String(text)) if text.is_empty() => wishes.push(Wish::Any(index)),
            Some(Value::String(text)) => match given(text, &format!("network {index}")) {
                Ok(mac) => wishes.push(Wish::Given(index, mac, None)),
                Err(refused) => return refused,
            },
            Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {}
        }
    }
    if wishes.is_empty() {
        return Draft::Pass;
    }
    let Request { owner, dry_run, .. } = request;
    let (kept, restored, networks) = (Vec::new(), Vec::new(), Some(networks));
    let (stamp, stamped) = (None, None);
    Draft::Want(Box::new(Wants { owner, dry_run, stamp, stamped, kept, restored, wishes, networks }))
}

impl Reply {
    /// Whether the object may be written.
    pub fn is_allowed(&self) -> bool {
        self.refused.is_none()
    }

    /// Why it is refused.
    pub fn refused(&self) -> Option<&Error> {
        self.refused.as_ref()
    }

    /// The changes, a JSON Patch (RFC 6902).
    pub fn patch(&self) -> &[Value] {
        &self.patch
    }

    /// Addresses from the object's manifest that are in use by another.
    pub fn duplicates(&self) -> &[Mac] {
        &self.duplicates
    }

    /// The AdmissionReview to answer with.
    pub fn document(&self) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": self.is_allowed()});
        if !self.patch.is_empty() {
            response["patchType"] = "JSONPatch".into();
            response["patch"] = BASE64.encode(Value::from(self.patch.clone()).to_string()).into();
        }
        if !self.warnings.is_empty() {
            response["warnings"] = self.warnings.clone().into();
        }
        if let Some(error) = &self.refused {
            let (code, reason) = match error.kind() {
                Kind::Invalid => (422, "Invalid"),
                Kind::Taken => (409, "Conflict"),
                Kind::Exhausted | Kind::Forbidden | Kind::Unreachable => (503, "ServiceUnavailable"),
                Kind::Internal => (500, "InternalError"),
            };
            response["status"] = json!({"code": code, "reason": reason, "message": error.to_string()});
        }
        json!({"apiVersion": self.version, "kind": "AdmissionReview", "response": response})
    }
}
