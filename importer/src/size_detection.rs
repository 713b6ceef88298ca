//! `cdi-image-size-detection`: the importer by another name, as CDI's controller starts it in a pod next to a claim that is to be
//! cloned without a size. The virtual size of the disk becomes the termination message. Exit codes are the contract's.
//!
//! Not here: how images are read (`disk_image`).

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::names;
use disk_image::FileSource;
use disk_image::transfer::{self, Limits, Progress, Request, Spool};

/// The name of the program.
const NAME: &str = "cdi-image-size-detection";
/// Its one argument.
const ARGUMENT: &str = "image-path";

/// Reasons to end without a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    /// The argument is missing, or another one is there.
    Arguments,
    /// The file is no image that can be read.
    File,
    /// There is no such file.
    Path,
    /// The termination message cannot be written.
    Message,
    /// The size is not known.
    Unknown,
}

impl Failed {
    fn code(self) -> u8 {
        match self {
            Self::Arguments => 1,
            Self::File => 2,
            Self::Path => 3,
            Self::Message => 4,
            Self::Unknown => 5,
        }
    }
}

/// Whether the program was started by this name.
pub(crate) fn is_meant(program: Option<&OsString>) -> bool {
    program.and_then(|program| Path::new(program).file_name()) == Some(OsStr::new(NAME))
}

/// Runs with the arguments behind the name: the exit code.
pub(crate) fn run(arguments: &[OsString], root: Option<&str>) -> u8 {
    let log = match root {
        Some(root) => Path::new(root).join(names::TERMINATION_LOG.trim_start_matches('/')),
        None => PathBuf::from(names::TERMINATION_LOG),
    };
    match detect(arguments, &log) {
        Ok(()) => 0,
        Err((failed, text)) => {
            tracing::error!("{text}");
            failed.code()
        }
    }
}

fn detect(arguments: &[OsString], log: &Path) -> Result<(), (Failed, String)> {
    let path = path(arguments).ok_or_else(|| {
        (Failed::Arguments, format!("the arguments are not -{ARGUMENT} PATH: {arguments:?}"))
    })?;
    let shown = path.display();
    let source = FileSource::open_path(&path).map_err(|error| (Failed::Path, format!("{shown}: {error}")))?;
    let request = Request {
        source: Arc::new(source),
        format: None,
        limits: Limits::default(),
        progress: Progress::new(),
        spool: Spool::default(),
    };
    let image = transfer::open(request).map_err(|error| (Failed::File, format!("{shown}: {error}")))?;
    let size = image.virtual_size();
    let size = size.ok_or_else(|| (Failed::Unknown, format!("{shown}: the virtual size is not known")))?;
    tracing::info!(path = %shown, size, format = image.format().name(), "the virtual size");
    std::fs::write(log, size.to_string())
        .map_err(|error| (Failed::Message, format!("{}: {error}", log.display())))
}

/// The path in `-image-path PATH`, with one dash or two, and with = or a space.
fn path(arguments: &[OsString]) -> Option<PathBuf> {
    let rest = |word: &OsString| -> Option<String> {
        let word = word.to_str()?.strip_prefix('-')?;
        word.strip_prefix('-').unwrap_or(word).strip_prefix(ARGUMENT).map(str::to_owned)
    };
    let found = match arguments {
        [one] => PathBuf::from(rest(one)?.strip_prefix('=')?),
        [one, value] if rest(one)?.is_empty() => PathBuf::from(value),
        _ => return None,
    };
    (!found.as_os_str().is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_path_is_given_as_go_programs_take_it() {
        for given in
            [&["-image-path", "/a"][..], &["--image-path", "/a"], &["-image-path=/a"], &["--image-path=/a"]]
        {
            assert_eq!(path(&words(given)), Some(PathBuf::from("/a")), "{given:?}");
        }
        for given in [
            &[][..],
            &["/a"],
            &["-image-path"],
            &["-image-path="],
            &["-image", "/a"],
            &["-image-path", "/a", "b"],
        ] {
            assert_eq!(path(&words(given)), None, "{given:?}");
        }
        assert!(is_meant(Some(&OsString::from("/usr/bin/cdi-image-size-detection"))));
        assert!(!is_meant(Some(&OsString::from("/usr/bin/importer"))) && !is_meant(None));
    }
}
