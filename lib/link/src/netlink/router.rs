//! Requests to the kernel's routing family (links, addresses, routes), many in one system call.

use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::error::{Error, Kind};
use crate::namespace::Namespace;
use crate::netlink::socket::{Refusal, Reply, Socket};

/// From linux/netlink.h.
const NLM_F_BULK: u16 = 0x200;

/// Multicast groups of the kernel's notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Links.
    Link,
    /// Addresses of IPv6, and what duplicate address detection finds.
    Address6,
}

/// One request, and what it is for in words that end a sentence: "the kernel did not …".
#[derive(Clone, Debug)]
pub struct Request {
    message: RouteNetlinkMessage,
    flags: u16,
    what: String,
}

impl Request {
    /// A request to change or get one thing.
    pub fn new(message: RouteNetlinkMessage, what: impl Into<String>) -> Self {
        Self { message, flags: 0, what: what.into() }
    }

    /// A request to make something that must not be there yet.
    pub fn create(message: RouteNetlinkMessage, what: impl Into<String>) -> Self {
        Self { message, flags: NLM_F_CREATE | NLM_F_EXCL, what: what.into() }
    }

    /// A request to make an object that may exist in addition to others of its kind.
    pub fn add(message: RouteNetlinkMessage, what: impl Into<String>) -> Self {
        Self { message, flags: NLM_F_CREATE, what: what.into() }
    }

    /// A request to make something in place of what may be there.
    pub fn replace(message: RouteNetlinkMessage, what: impl Into<String>) -> Self {
        Self { message, flags: NLM_F_CREATE | NLM_F_REPLACE, what: what.into() }
    }

    /// A request to remove all that its conditions hold for. Kernels before Linux 5.19 refuse.
    pub fn bulk(message: RouteNetlinkMessage, what: impl Into<String>) -> Self {
        Self { message, flags: NLM_F_BULK, what: what.into() }
    }

    /// A request for all there is. It must be the only one of its batch.
    pub fn dump(message: RouteNetlinkMessage, what: impl Into<String>) -> Self {
        Self { message, flags: NLM_F_DUMP, what: what.into() }
    }
}

/// Result of one request.
#[derive(Debug)]
pub struct Answer {
    what: String,
    result: Result<Vec<RouteNetlinkMessage>, Refusal>,
}

impl Answer {
    /// The messages it was answered with, none for most.
    ///
    /// # Errors
    /// [`Kind::Kernel`] with the request's purpose and the kernel's words.
    pub fn done(self) -> Result<Vec<RouteNetlinkMessage>, Error> {
        self.result.map_err(|refusal| {
            Error::with(Kind::Kernel, format!("the kernel did not {}", self.what), refusal)
        })
    }

    /// Why it was refused, if it was.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.result.as_ref().err()
    }
}

/// A socket to the routing family of one namespace.
pub struct Router {
    socket: Socket,
}

impl Router {
    /// In the namespace this process is in.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(NETLINK_ROUTE)? })
    }

    /// In `namespace`; this process stays in `home`.
    ///
    /// # Errors
    /// As [`Namespace::inside`] and [`Socket::open`].
    pub fn open_in(namespace: &Namespace, home: &Namespace) -> Result<Self, Error> {
        namespace.inside(home, Self::open)
    }

    /// Subscribes this socket to the kernel's notifications.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when it does not want to.
    pub fn listen(&mut self, event: Event) -> Result<(), Error> {
        // RTNLGRP_LINK and RTNLGRP_IPV6_IFADDR of linux/rtnetlink.h.
        self.socket.join(match event {
            Event::Link => 1,
            Event::Address6 => 9,
        })
    }

    /// From now on the kernel takes what is in a request to list something for a condition, instead of listing all.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when it knows no conditions: before Linux 4.20.
    pub fn strict(&mut self) -> Result<(), Error> {
        self.socket.strict()
    }

    /// Waits for an event and takes all there are; false when `patience` was over first.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the socket fails.
    pub fn wait(&mut self, patience: Duration) -> Result<bool, Error> {
        self.socket.wait(patience)
    }

    /// Sends all requests in one system call; one answer for each, in their order. A refused request does not keep the
    /// kernel from working off those after it.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the socket fails.
    pub fn exchange(&mut self, requests: Vec<Request>) -> Result<Vec<Answer>, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let (mut answers, first, replies) = self.send(requests)?;
        for reply in replies {
            let sequence = match &reply {
                Reply::Data(frame) => frame.sequence,
                Reply::Done { sequence } | Reply::Refused { sequence, .. } => *sequence,
            };
            let index = usize::try_from(sequence.wrapping_sub(first)).unwrap_or(usize::MAX);
            // A message that answers none of ours is an event or late; neither concerns this batch.
            let Some(answer) = answers.get_mut(index) else { continue };
            match reply {
                Reply::Data(frame) => {
                    if let (Ok(messages), Some(message)) =
                        (&mut answer.result, decode(frame.kind, &frame.body)?)
                    {
                        messages.push(message);
                    }
                }
                Reply::Done { .. } => {}
                Reply::Refused { refusal, .. } => answer.result = Err(refusal),
            }
        }
        Ok(answers)
    }

    /// How many things a request for all there is lists. They are not decoded: of a link that costs more than to list it.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the socket fails or the kernel refuses.
    pub fn count(&mut self, request: Request) -> Result<usize, Error> {
        let (mut answers, _, replies) = self.send(vec![request])?;
        let mut count = 0;
        for reply in replies {
            match reply {
                Reply::Data(_) => count += 1,
                Reply::Done { .. } => {}
                Reply::Refused { refusal, .. } => {
                    answers.iter_mut().for_each(|answer| answer.result = Err(refusal.clone()));
                }
            }
        }
        answers.into_iter().try_for_each(|answer| answer.done().map(drop))?;
        Ok(count)
    }

    /// Sends requests in one system call: an empty answer for each, the number of the first, and the replies to all.
    fn send(&mut self, requests: Vec<Request>) -> Result<(Vec<Answer>, u32, Vec<Reply>), Error> {
        let mut bytes = Vec::new();
        let mut first = None;
        let mut last = 0;
        let count = requests.len();
        let mut answers = Vec::with_capacity(count);
        for (index, request) in requests.into_iter().enumerate() {
            last = self.socket.next_sequence();
            first.get_or_insert(last);
            let mut header = NetlinkHeader::default();
            header.flags = NLM_F_REQUEST | request.flags;
            // Refusals come anyway; only the end of the batch must be acknowledged.
            if index + 1 == count && request.flags & NLM_F_DUMP != NLM_F_DUMP {
                header.flags |= NLM_F_ACK;
            }
            header.sequence_number = last;
            let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request.message));
            message.finalize();
            let start = bytes.len();
            bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
            message.serialize(&mut bytes[start..]);
            answers.push(Answer { what: request.what, result: Ok(Vec::new()) });
        }
        let replies = self.socket.transact(&bytes, last)?;
        Ok((answers, first.unwrap_or(last), replies))
    }

    /// One request; its messages.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the socket fails or the kernel refuses.
    pub fn ask(&mut self, request: Request) -> Result<Vec<RouteNetlinkMessage>, Error> {
        let mut all = Vec::new();
        for answer in self.exchange(vec![request])? {
            all.extend(answer.done()?);
        }
        Ok(all)
    }
}

/// The message in a frame; none when it is of a type we never asked for.
fn decode(kind: u16, body: &[u8]) -> Result<Option<RouteNetlinkMessage>, Error> {
    let mut header = NetlinkHeader::default();
    header.message_type = kind;
    RouteNetlinkMessage::deserialize(&header, body)
        .map(Some)
        .map_err(|error| Error::with(Kind::Kernel, "a netlink answer of the kernel cannot be decoded", error))
}
