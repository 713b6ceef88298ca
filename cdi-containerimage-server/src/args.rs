//! The command line: flags in the manner of Go's `flag` package, one dash or two, the value after `=` or as the next
//! argument. The names and defaults are upstream's. Not here: whether paths exist.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use api::import::node;
use thiserror::Error;

/// The text of `-h`.
pub const USAGE: &str = "\
Usage: cdi-containerimage-server [flags]

Serves the one file in a folder over HTTP on loopback, until the client creates a file.
GET /disk.img is the file, ranges included; GET /info lists the environment.

  -p int               port, 0 for any free one (default 8100)
  -image-dir string    folder with the image (default \"/disk\")
  -ready-file string   file that is written when connections can be made; it holds the image's name (default \"/shared/ready\")
  -done-file string    file that ends the server when it appears (default \"/shared/done\")
  -h, -help            this text
";

/// The directory to serve, and the files of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// Port on loopback; 0 is any free one.
    pub port: u16,
    /// Folder that holds the image and nothing else.
    pub image_dir: PathBuf,
    /// Written when connections can be made.
    pub ready_file: PathBuf,
    /// Ends the server when it appears.
    pub done_file: PathBuf,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            port: node::SERVER_PORT,
            image_dir: node::IMAGE_DIR.into(),
            ready_file: node::READY_FILE.into(),
            done_file: node::DONE_FILE.into(),
        }
    }
}

/// A parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// To serve.
    Serve(Args),
    /// To show [`USAGE`]. A controller starts us so to have an image pulled and nothing else, so it is a success.
    Help,
}

/// Invalid arguments.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ArgsError {
    /// No flag of that name.
    #[error("unknown flag {0:?}")]
    Unknown(OsString),
    /// Something that is no flag.
    #[error("unexpected argument {0:?}")]
    Unexpected(OsString),
    /// A flag without its value.
    #[error("the flag -{0} needs a value")]
    NoValue(&'static str),
    /// No port number.
    #[error("-p needs a port from 0 to 65535, not {0:?}")]
    Port(OsString),
}

/// Reads arguments, the program's name not among them. Of a flag given twice the last counts.
///
/// # Errors
/// The first invalid argument.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, ArgsError> {
    let mut args = Args::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        let Some(flag) = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")) else {
            return Err(ArgsError::Unexpected(argument));
        };
        let (name, given) = match flag.iter().position(|&b| b == b'=') {
            Some(at) => (&flag[..at], Some(OsStr::from_bytes(&flag[at + 1..]).to_owned())),
            None => (flag, None),
        };
        let mut value = |name| {
            let value = given.clone().or_else(|| arguments.next());
            value.filter(|value| !value.is_empty()).ok_or(ArgsError::NoValue(name))
        };
        match name {
            b"p" => {
                let port = value("p")?;
                args.port = port.to_str().and_then(|p| p.parse().ok()).ok_or(ArgsError::Port(port))?;
            }
            b"image-dir" => args.image_dir = value("image-dir")?.into(),
            b"ready-file" => args.ready_file = value("ready-file")?.into(),
            b"done-file" => args.done_file = value("done-file")?.into(),
            b"h" | b"help" => return Ok(Command::Help),
            other => return Err(ArgsError::Unknown(OsString::from_vec(other.to_vec()))),
        }
    }
    Ok(Command::Serve(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Result<Command, ArgsError> {
        parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn flags_in_every_spelling() {
        let asked = Args {
            port: 9000,
            image_dir: "/i".into(),
            ready_file: "/s/r".into(),
            done_file: "/s/d=1".into(),
        };
        for arguments in [
            &["-p", "9000", "-image-dir", "/i", "-ready-file", "/s/r", "-done-file", "/s/d=1"][..],
            &["--p=9000", "--image-dir=/i", "-ready-file=/s/r", "--done-file", "/s/d=1"],
            &["-p=1", "-image-dir", "/i", "-p", "9000", "-ready-file=/s/r", "-done-file=/s/d=1"],
        ] {
            assert_eq!(of(arguments), Ok(Command::Serve(asked.clone())), "{arguments:?}");
        }
        assert_eq!(of(&[]), Ok(Command::Serve(Args::default())));
        for help in ["-h", "--h", "-help", "--help"] {
            assert_eq!(of(&["-p", "1", help]), Ok(Command::Help));
        }
    }

    #[test]
    fn rejects_invalid_arguments() {
        for arguments in [
            &["-p"][..],
            &["-p", "x"],
            &["-p", "65536"],
            &["-p", "-1"],
            &["-p="],
            &["-image-dir", ""],
            &["-done-file"],
            &["-port", "1"],
            &["-"],
            &["--"],
            &["8100"],
            &["-image-name", "x"],
        ] {
            assert!(of(arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn the_usage_has_the_defaults() {
        let args = Args::default();
        assert!(USAGE.contains(&format!("(default {})", args.port)));
        for path in [args.image_dir, args.ready_file, args.done_file] {
            assert!(USAGE.contains(&format!("(default {path:?})")), "{path:?}");
        }
    }
}
