//! The completed steps of an ADD, which are undone in reverse when a later one fails; and the look-up of a link by its name.

use ipnet::IpNet;
use rustix::io::Errno;

use crate::error::Error;
use crate::netlink::{Address, Answer, Link, Request, Router};
use crate::nft::{AddressPins, Masquerading, SpoofCheck};
use link::nft::Filter;

/// The completed steps.
#[derive(Default)]
pub(super) struct Undo(Vec<Step>);

/// One thing that was done, and so can be undone.
pub(super) enum Step {
    /// A bridge was created. It is removed unless another attachment uses it by now.
    Bridge { name: String },
    /// A veth pair was made.
    HostEnd { name: String },
    /// Frames with a foreign Ethernet address are thrown away.
    SpoofCheck(SpoofCheck),
    /// Frames with a foreign address are thrown away.
    AddressPins(AddressPins),
    /// Outgoing traffic is masqueraded.
    Masquerading(Masquerading),
    /// Something was switched, and this switches it back.
    Ask(Request),
    /// A gateway's address was added. It is removed unless another attachment uses the bridge by now.
    Gateway { link: u32, name: String, address: IpNet, bridge: u32 },
}

impl Undo {
    /// Notes a step that succeeded.
    pub(super) fn note(&mut self, step: Step) {
        self.0.push(step);
    }

    /// Undoes all steps, the last one first; returns the errors of steps that could not be undone.
    pub(super) fn run(self, host: &mut Router) -> Vec<Error> {
        self.0.into_iter().rev().filter_map(|step| step.undo(host).err()).collect()
    }
}

impl Step {
    fn undo(self, host: &mut Router) -> Result<(), Error> {
        match self {
            Self::Bridge { name } => {
                let Some(bridge) = find(host, &name)? else { return Ok(()) };
                if Link::all(&host.ask(Link::list(Some(bridge.index)))?).is_empty() {
                    host.ask(Link::delete(bridge.index, &name))?;
                }
                Ok(())
            }
            Self::HostEnd { name } => {
                let Some(link) = find(host, &name)? else { return Ok(()) };
                host.ask(Link::delete(link.index, &name))?;
                Ok(())
            }
            Self::SpoofCheck(check) => check.tear_down(&mut Filter::open()?),
            Self::AddressPins(pins) => pins.tear_down(&mut Filter::open()?),
            Self::Masquerading(masquerading) => masquerading.tear_down(),
            Self::Ask(request) => Ok(host.ask(request).map(drop)?),
            Self::Gateway { link, name, address, bridge } => {
                if Link::all(&host.ask(Link::list(Some(bridge)))?).len() <= 1 {
                    host.ask(Address::remove(link, address, &name))?;
                }
                Ok(())
            }
        }
    }
}

/// The link of a name, if there is one.
pub(super) fn find(host: &mut Router, name: &str) -> Result<Option<Link>, Error> {
    host.exchange(vec![Link::get(name)])?.into_iter().next().map(present).transpose().map(Option::flatten)
}

/// The link in the answer to a question by name; none when there is no such link.
pub(crate) fn present(answer: Answer) -> Result<Option<Link>, Error> {
    if answer.refusal().is_some_and(|refusal| refusal.errno == Errno::NODEV) {
        return Ok(None);
    }
    Ok(Link::all(&answer.done()?).pop())
}
