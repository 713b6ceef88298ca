//! `importer inspect`: what an image is and how it would be read. Writes nothing.

use std::fmt::Write as _;

use disk_image::transfer::{self, Progress, Request, Spool};
use disk_image::{Compression, Stop};
use serde::Serialize;

use crate::args::Inspect;
use crate::config::{Location, Output};
use crate::error::Error;
use crate::report::size;
use crate::source::open::open;

#[derive(Serialize)]
struct Inspected {
    source: String,
    /// The disk's file in a container image or an OVA.
    file: Option<String>,
    layer: Option<String>,
    /// Whether the image is known to have no other file next to it.
    only_file: Option<bool>,
    format: &'static str,
    compression: Option<&'static str>,
    virtual_size: Option<u64>,
    source_size: Option<u64>,
    reading: String,
    /// Whether it can be read as one stream from its start, as from a pipe; none where that is not known.
    streamable: Option<bool>,
    /// Bytes that such a stream gives before the tables that map them.
    late_bytes: Option<u64>,
    looks_like: Option<&'static str>,
    bytes_read: u64,
}

/// Looks at an image and describes it.
///
/// # Errors
/// When it cannot be reached or opened.
pub(crate) fn inspect(asked: &Inspect, stop: &Stop) -> Result<String, Error> {
    let opened = open(&asked.location, &asked.access, &asked.limits, stop)?;
    let source_size = opened.source.facts().size;
    let (file, layer) = match &opened.unverified {
        Some(disk) => (Some(disk.file().to_owned()), Some(disk.layer().to_owned())),
        None => (None, None),
    };
    let inside = opened.unverified.clone();
    let progress = Progress::new();
    let image = transfer::open(Request {
        source: opened.source,
        format: asked.format,
        limits: asked.limits.transfer(),
        progress: progress.clone(),
        spool: Spool::default(),
    })?;
    // A local archive is read to the end of the disk's layer: another file may follow the disk. On a registry that
    // would be the whole download; an import does it.
    let only_file = if let (Location::OciArchive(_), Some(disk)) = (&asked.location, inside) {
        disk.verify(stop)?;
        Some(true)
    } else {
        None
    };
    let late_bytes = image.late_bytes()?;
    let seen = Inspected {
        source: asked.location.to_string(),
        file: file.or_else(|| image.file().map(str::to_owned)),
        layer,
        only_file,
        format: image.format().name(),
        compression: image.compression().map(Compression::name),
        virtual_size: image.virtual_size(),
        source_size,
        reading: image.way().to_string(),
        streamable: late_bytes.map(|late| late <= transfer::WINDOW as u64),
        late_bytes,
        looks_like: if image.is_tar() { Some("a tar archive") } else { image.foreign() },
        bytes_read: progress.read(),
    };
    Ok(match asked.output {
        Output::Json => serde_json::to_string(&seen).unwrap_or_default(),
        Output::Text => text(&seen),
    })
}

fn text(seen: &Inspected) -> String {
    let bytes = |n: Option<u64>| {
        n.map_or_else(|| "not known before the end".to_owned(), |n| format!("{n} ({})", size(n)))
    };
    let mut text = format!(
        "source:       {}\nsource size:  {}\nformat:       {}\ncompression:  {}\nvirtual size: {}\nread as:      {}\nas a stream:  {}",
        seen.source,
        bytes(seen.source_size),
        seen.format,
        seen.compression.unwrap_or("none"),
        bytes(seen.virtual_size),
        seen.reading,
        streamed(seen),
    );
    if let Some(file) = &seen.file {
        let place = match (&seen.layer, seen.only_file) {
            (Some(layer), Some(_)) => format!("the layer {layer}"),
            (Some(layer), None) => {
                format!("the layer {layer} (whether another one follows there is seen by an import)")
            }
            (None, _) => "the OVA".to_owned(),
        };
        let _infallible = write!(text, "\nfile:         {file} in {place}");
    }
    if let Some(name) = seen.looks_like {
        let _infallible = write!(text, "\nlooks like:   {name}, not like a disk image that can be read");
    }
    text
}

/// Whether it could come through a pipe.
fn streamed(seen: &Inspected) -> String {
    match (seen.streamable, seen.late_bytes) {
        (Some(true), _) => "yes".to_owned(),
        (Some(false), Some(late)) => format!(
            "no, {} precede the tables that map them: a pipe needs as much free space next to the disk, or --scratch",
            size(late)
        ),
        (Some(false) | None, _) => "not known before it is read".to_owned(),
    }
}
