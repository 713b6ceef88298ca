//! A disk image that is ready to be written: it is open, and nothing that is known before the first write refuses it.

use super::inspect::Facts;
use super::{Input, Session};
use crate::transfer::Image;
use crate::volume::checksum::Checked;
use crate::volume::config::Config;

/// An import up to the first write.
pub(super) struct Prepared<'a> {
    pub(super) config: &'a Config,
    pub(super) session: &'a Session,
    pub(super) facts: &'a Facts,
    pub(super) image: &'a Image,
    pub(super) input: &'a Input,
    pub(super) checked: Option<&'a Checked>,
    pub(super) available: u64,
}
