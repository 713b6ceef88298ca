//! Which version a source has, without reading the image: for polls of sources that need credentials.

use disk_image::Stop;

use super::open::{net, open, registry_options};
use super::registry;
use crate::config::{Access, Limits, Location};
use crate::error::{Error, Kind};

/// A text that changes when the source does: the digest of an image's manifest, else the file's entity tag or time.
///
/// # Errors
/// When the source cannot be reached, or the server gives neither entity tag nor time.
pub(crate) fn version(
    location: &Location,
    access: &Access,
    limits: &Limits,
    stop: &Stop,
) -> Result<String, Error> {
    match location {
        Location::Registry(image) => registry::digest(&net(stop)?, &registry_options(image, access, limits)),
        Location::Http(_) | Location::S3(_) | Location::Gcs(_) => {
            let opened = open(location, access, limits, stop)?;
            opened.identity.ok_or_else(|| {
                Error::new(Kind::Refused, "the server gives neither entity tag nor time of the file")
            })
        }
        Location::Blank
        | Location::Stdin
        | Location::File(_)
        | Location::NodePull(_)
        | Location::OciArchive(_)
        | Location::Nbd(_) => Err(Error::usage(format!("{location} has no version"))),
    }
}
