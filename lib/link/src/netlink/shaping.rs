//! Traffic control, as much as limits a link's rate: token buckets (`tbf`), and the redirection of what comes in.

use netlink_packet_core::DefaultNla;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

use crate::netlink::Request;

/// Attributes of linux/pkt_sched.h, linux/pkt_cls.h and linux/tc_act/tc_mirred.h.
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const U32_CLASS: u16 = 1;
const U32_SELECTOR: u16 = 5;
const U32_ACTION: u16 = 7;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARAMETERS: u16 = 2;
/// The number of the first action of a list.
const FIRST: u16 = 1;
/// TC_ACT_STOLEN and TCA_EGRESS_REDIR: the packet goes out of another link instead.
const STOLEN: u32 = 4;
const REDIRECT: u32 = 1;
/// The redirection's priority, and all protocols, as they stand in a message.
const PRIORITY: u32 = 1;
const ALL: u16 = 3;

const ROOT: TcHandle = TcHandle { major: 0xffff, minor: 0xffff };
const INGRESS: TcHandle = TcHandle { major: 0xffff, minor: 0xfff1 };
const OF_INGRESS: TcHandle = TcHandle { major: 0xffff, minor: 0 };
const FIRST_HANDLE: TcHandle = TcHandle { major: 1, minor: 0 };

/// A token bucket at the root of a link: what limits the rate of what the link sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Bytes in a second.
    pub rate: u64,
    /// Bytes that may wait.
    pub limit: u32,
    /// The burst, in ticks of the kernel's clock at this rate.
    pub buffer: u32,
}

impl Bucket {
    /// Makes it. The link must have no other at its root that an administrator made.
    pub fn create(self, link: u32, name: &str) -> Request {
        let rate32 = u32::try_from(self.rate).unwrap_or(u32::MAX);
        // struct tc_tbf_qopt: two of struct tc_ratespec (the rate is its last member), and three numbers.
        let mut parameters = Vec::with_capacity(36);
        parameters.extend([0; 8]);
        parameters.extend(rate32.to_ne_bytes());
        parameters.extend([0; 12]);
        parameters.extend(self.limit.to_ne_bytes());
        parameters.extend(self.buffer.to_ne_bytes());
        parameters.extend([0; 4]);
        let mut options = vec![(TBF_PARAMETERS, parameters)];
        if u32::try_from(self.rate).is_err() {
            options.push((TBF_RATE64, self.rate.to_ne_bytes().to_vec()));
        }
        let message = queue(link, FIRST_HANDLE, ROOT, "tbf", options);
        let what = format!("limit the rate of {name}");
        Request::create(RouteNetlinkMessage::NewQueueDiscipline(message), what)
    }

    /// Takes the root's discipline away, whatever it is.
    pub fn remove(link: u32, name: &str) -> Request {
        let message = queue(link, TcHandle::default(), ROOT, "", Vec::new());
        Request::new(
            RouteNetlinkMessage::DelQueueDiscipline(message),
            format!("remove the rate limit of {name}"),
        )
    }

    /// Asks for the disciplines of all links: the kernel takes no condition.
    pub fn list() -> Request {
        Request::dump(
            RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()),
            "list the queueing disciplines",
        )
    }

    /// The token bucket at the root of a link, in the answer to [`Bucket::list`].
    pub fn find(messages: &[RouteNetlinkMessage], link: u32) -> Option<Self> {
        messages.iter().find_map(|message| {
            let RouteNetlinkMessage::NewQueueDiscipline(message) = message else { return None };
            let ours = u32::try_from(message.header.index) == Ok(link) && message.header.parent == ROOT;
            ours.then(|| Self::read(message)).flatten()
        })
    }

    fn read(message: &TcMessage) -> Option<Self> {
        let mut is_bucket = false;
        let mut found = None;
        let mut rate64 = None;
        for attribute in &message.attributes {
            if let TcAttribute::Kind(kind) = attribute {
                is_bucket = kind == "tbf";
            }
            let TcAttribute::Options(options) = attribute else { continue };
            // The library leaves the options of this kind as they came.
            let Some(TcOption::Other(other)) = options.first() else { continue };
            for (kind, value) in members(&value(other)) {
                match kind {
                    TBF_PARAMETERS => found = parameters(&value),
                    TBF_RATE64 => rate64 = value.try_into().ok().map(u64::from_ne_bytes),
                    _ => {}
                }
            }
        }
        let bucket = found.filter(|_| is_bucket)?;
        Some(Self { rate: rate64.unwrap_or(bucket.rate), ..bucket })
    }
}

/// Gives a link a place where filters see what comes in.
pub fn take_in(link: u32, name: &str) -> Request {
    let message = queue(link, OF_INGRESS, INGRESS, "ingress", Vec::new());
    Request::create(
        RouteNetlinkMessage::NewQueueDiscipline(message),
        format!("add an ingress filter to {name}"),
    )
}

/// Takes that place away, and its filters.
pub fn leave_out(link: u32, name: &str) -> Request {
    let message = queue(link, OF_INGRESS, INGRESS, "ingress", Vec::new());
    let what = format!("remove the ingress filter of {name}");
    Request::new(RouteNetlinkMessage::DelQueueDiscipline(message), what)
}

/// Has all that comes in by a link, which has the place for it, go out of the link `to`.
pub fn redirect(link: u32, to: u32, name: &str) -> Request {
    // struct tc_mirred: struct tc_gen with index, capabilities, action and two counts, then what to do and where.
    let mirred = [0, 0, STOLEN, 0, 0, REDIRECT, to].map(u32::to_ne_bytes).concat();
    let options = nested(&[(MIRRED_PARAMETERS, mirred)]);
    let action = nested(&[(ACTION_KIND, b"mirred\0".to_vec()), (ACTION_OPTIONS, options)]);
    // struct tc_u32_sel: TC_U32_TERMINAL, one key that everything has.
    let mut selector = vec![1, 0, 1, 0];
    selector.extend([0; 28]);
    let class = (1_u32 << 16 | 1).to_ne_bytes().to_vec();
    let options =
        vec![(U32_CLASS, class), (U32_SELECTOR, selector), (U32_ACTION, nested(&[(FIRST, action)]))];
    let mut message = queue(link, TcHandle::default(), OF_INGRESS, "u32", options);
    message.header.info = PRIORITY << 16 | u32::from(ALL.to_be());
    let what = format!("redirect what comes in by {name}");
    Request::create(RouteNetlinkMessage::NewTrafficFilter(message), what)
}

/// Whether a filter of a link redirects to the link `to`, in the answer to [`list_filters`].
pub fn redirects(messages: &[RouteNetlinkMessage], link: u32, to: u32) -> bool {
    // In nested attributes, at the end of struct tc_mirred.
    let wanted = [REDIRECT, to].map(u32::to_ne_bytes).concat();
    messages.iter().any(|message| {
        let RouteNetlinkMessage::NewTrafficFilter(message) = message else { return false };
        let mut bytes = vec![0; netlink_packet_core::Emitable::buffer_len(message)];
        netlink_packet_core::Emitable::emit(message, &mut bytes);
        u32::try_from(message.header.index) == Ok(link)
            && bytes.windows(wanted.len()).any(|part| part == wanted)
    })
}

/// Asks for the filters of what comes in by a link.
pub fn list_filters(link: u32) -> Request {
    let mut message = TcMessage::default();
    message.header.index = index(link);
    message.header.parent = OF_INGRESS;
    Request::dump(RouteNetlinkMessage::GetTrafficFilter(message), "list the filters of a link")
}

fn index(link: u32) -> i32 {
    i32::try_from(link).unwrap_or(i32::MAX)
}

fn queue(
    link: u32,
    handle: TcHandle,
    parent: TcHandle,
    kind: &str,
    options: Vec<(u16, Vec<u8>)>,
) -> TcMessage {
    let mut message = TcMessage::default();
    message.header.index = index(link);
    message.header.handle = handle;
    message.header.parent = parent;
    if !kind.is_empty() {
        message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    }
    if !options.is_empty() {
        let options = options.into_iter().map(|(kind, value)| TcOption::Other(DefaultNla::new(kind, value)));
        message.attributes.push(TcAttribute::Options(options.collect()));
    }
    message
}

/// Attributes one after another, each at a multiple of four bytes.
fn nested(attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (kind, value) in attributes {
        // Some bytes.
        let length = u16::try_from(value.len().saturating_add(4)).unwrap_or(u16::MAX);
        all.extend(length.to_ne_bytes());
        all.extend(kind.to_ne_bytes());
        all.extend(value);
        all.resize(all.len().next_multiple_of(4), 0);
    }
    all
}

/// The attributes that [`nested`] puts together.
fn members(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<4>() {
        let [a, b, c, d] = *head;
        let length = usize::from(u16::from_ne_bytes([a, b])).saturating_sub(4);
        let Some(value) = rest.get(..length) else { break };
        all.push((u16::from_ne_bytes([c, d]), value.to_vec()));
        bytes = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

fn value(attribute: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; netlink_packet_core::Nla::value_len(attribute)];
    netlink_packet_core::Nla::emit_value(attribute, &mut bytes);
    bytes
}

/// Of struct tc_tbf_qopt.
fn parameters(bytes: &[u8]) -> Option<Bucket> {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        bytes.try_into().ok().map(u32::from_ne_bytes)
    };
    Some(Bucket { rate: number(8)?.into(), limit: number(24)?, buffer: number(28)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_taken_apart_as_they_were_put_together() {
        let all = vec![(1, vec![1, 2, 3]), (4, vec![0; 8]), (7, Vec::new())];
        let bytes = nested(&all);
        assert_eq!((bytes.len(), members(&bytes)), (24, all));
        // Cut off anywhere, nothing is made up.
        for end in 0..bytes.len() {
            assert!(members(&bytes[..end]).len() < 4);
        }
        assert_eq!(parameters(&[0; 31]), None);
    }
}
