//! The command line. Its meaning is [`crate::config`]'s.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::import::SOURCE_VARIABLE;
use api::quantity;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use disk_image::Format;
use disk_image::volume::{self, Checksum, Contract, Holds, Place};
use disk_image::write::EngineKind;

use crate::config::{Access, Config, Limits, Location, Output, Proxy, Show, User, node_pull};
use crate::error::{Error, Kind};

const EXAMPLES: &str = "\
Examples:
  importer https://cloud.example.com/image.qcow2 disk.img
  importer --size 20Gi --checksum sha256:… https://example.com/image.raw.xz /dev/vg/disk
  importer docker://quay.io/containerdisks/fedora:latest fedora.img
  importer oci-archive:image.tar disk.img
  importer 'nbd+unix:///export?socket=/run/nbd.sock' disk.img
  importer blank empty.img --size 10Gi
  xzcat image.xz | importer - disk.img
  importer inspect image.vmdk

Sources: http(s)://, s3://, gs://, docker://, oci-archive:FILE, nbd(s)://, nbd+unix://, a file, - (standard input), blank.
Write ./ before a file name that equals a subcommand or one of these words.

Started without a source and with IMPORTER_SOURCE set, it follows the environment contract of CDI's importer.

Exit codes:
  0 done                         5 target full or too small
  1 reading or writing failed    6 checksum mismatch
  2 wrong usage                  7 target in use, not empty, or not writable
  3 source not reachable         8 image must be converted first
  4 content refused              129, 130, 143 stopped by a signal; run again to resume";

/// Imports a disk image of any format from any source straight into a file or onto a block device.
#[derive(Debug, Parser)]
#[command(name = "importer", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Where the image is.
    pub(crate) source: Option<OsString>,

    /// File or block device to write the disk to (with --archive: folder to unpack into).
    pub(crate) target: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Target")]
    pub(crate) import: ImportArgs,

    #[command(flatten, next_help_heading = "Source")]
    pub(crate) from: FromArgs,

    #[command(flatten, next_help_heading = "Logs and reports")]
    pub(crate) logs: LogArgs,
}

/// Something else than importing.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "one value, read once at the start")]
pub(crate) enum Command {
    /// Print format, virtual size, compression and how the image will be read.
    ///
    /// Without a source, and with IMPORTER_SOURCE set, it only asks which version the source of the environment has: the
    /// manifest's digest, or the file's entity tag or time. It becomes the termination message.
    Inspect {
        /// Where the image is.
        source: Option<OsString>,
        #[command(flatten)]
        from: FromArgs,
        /// How to print it.
        #[arg(long, value_enum, default_value_t = OutputArg::Text)]
        output: OutputArg,
        #[command(flatten)]
        logs: LogArgs,
    },
    /// Print a completion script for a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// How the source is reached and read.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct FromArgs {
    /// The image's format, instead of detecting it.
    #[arg(long, value_enum)]
    pub(crate) format: Option<FormatArg>,
    /// Extra request header "Key: value"; may be given several times. Redirects to other servers get it, too; secrets
    /// belong in --secret-header-file.
    #[arg(long, value_name = "KEY: VALUE")]
    pub(crate) header: Vec<String>,
    /// File with extra request headers, one per line, that never appear in logs.
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_header_file: Vec<PathBuf>,
    /// File with a user (or access key) on its first line and a password (or secret key) on its second; "user:password"
    /// on one line will do.
    #[arg(long, value_name = "FILE")]
    pub(crate) user_file: Option<PathBuf>,
    /// CA certificates (PEM) to trust as well: a file, or a folder of .crt and .pem files.
    #[arg(long, value_name = "PATH")]
    pub(crate) cacert: Vec<PathBuf>,
    /// Do not verify the server's certificate; a registry (docker://) that does not speak TLS is reached by plain HTTP.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Credentials of Google Cloud Storage.
    #[arg(long, value_name = "FILE", env = "GOOGLE_APPLICATION_CREDENTIALS")]
    pub(crate) google_credentials: Option<PathBuf>,
    /// Platform of a registry image, such as arm64 or linux/arm/v7. If not given: of an image for several platforms, this
    /// machine's; an image for one platform is taken as it is.
    #[arg(long, value_name = "[OS/]ARCH[/VARIANT]")]
    pub(crate) architecture: Option<String>,
    /// Registry credentials (config.json of docker, auth.json of podman, .dockerconfigjson); by default the file that
    /// docker login writes, if there is one. Only used without --user-file.
    #[arg(long, value_name = "FILE", env = "REGISTRY_AUTH_FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// Proxy for http:// sources, instead of the variable http_proxy (which others cannot read, if there is a password in
    /// it).
    #[arg(long, value_name = "URL")]
    pub(crate) http_proxy: Option<String>,
    /// Proxy for https:// sources, instead of the variable https_proxy.
    #[arg(long, value_name = "URL")]
    pub(crate) https_proxy: Option<String>,
    /// Hosts that are reached without a proxy, instead of the variable no_proxy.
    #[arg(long, value_name = "HOSTS")]
    pub(crate) no_proxy: Option<String>,
    /// The source is the server in the pulled image's container (http://localhost:8100/disk.img).
    #[arg(long)]
    pub(crate) node_pull: bool,
    /// File that this server makes when it is ready; it is waited for.
    #[arg(long, value_name = "FILE", requires = "node_pull")]
    pub(crate) ready_file: Option<PathBuf>,
    /// File to make in the end, so that this server ends.
    #[arg(long, value_name = "FILE", requires = "node_pull")]
    pub(crate) done_file: Option<PathBuf>,
    /// Connections at most.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) connections: u8,
    /// Largest window a compressed image may declare.
    #[arg(long, value_name = "SIZE", default_value = "128Mi", value_parser = window)]
    pub(crate) window_limit: u64,
    /// Seconds without a byte after which the source counts as broken.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=WEEK))]
    pub(crate) stall: u64,
    /// Seconds for which failures are retried without any progress.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=WEEK))]
    pub(crate) patience: u64,
}

/// How the disk is written.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ImportArgs {
    /// Size of the disk: it grows to this, in whole MiB; a larger image is refused. On a device: where the zeroes end
    /// that follow the image, at the device's end if not given.
    #[arg(long, value_parser = disk_size)]
    pub(crate) size: Option<u64>,
    /// Checksum of the bytes as downloaded: md5, sha1, sha256 or sha512, a colon, hex digits. With docker:// and
    /// oci-archive: of the disk file inside the layer, as it is there.
    #[arg(long, value_name = "ALGO:HEX")]
    pub(crate) checksum: Option<Checksum>,
    /// The source is a tar archive (gz, xz, zstd around it are fine): unpack it into the folder TARGET, which must be
    /// empty or missing; with --force, over what it holds.
    #[arg(long)]
    pub(crate) archive: bool,
    /// Reserve all blocks of the disk.
    #[arg(long)]
    pub(crate) preallocate: bool,
    /// Overwrite what the target holds. What is mounted or in use is refused all the same.
    #[arg(long)]
    pub(crate) force: bool,
    /// Directory of the journal, so that an interrupted import resumes; next to a file it is the default.
    #[arg(long, value_name = "DIR")]
    pub(crate) journal: Option<PathBuf>,
    /// Folder where early parts of a stream may be kept when its tables come late.
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Page cache: none and default go past it where that works, writeback uses it.
    #[arg(long, value_enum, default_value_t = CacheArg::Default)]
    pub(crate) cache: CacheArg,
    /// How bytes get to the disk; auto tries.
    #[arg(long, value_enum, default_value_t = EngineArg::Auto)]
    pub(crate) engine: EngineArg,
    /// Share of the space that is the filesystem's own, as FILESYSTEM_OVERHEAD.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = overhead)]
    pub(crate) overhead: f64,
    /// Memory for image data.
    #[arg(long, value_name = "SIZE", default_value = "24Mi", value_parser = memory)]
    pub(crate) memory: u64,
    /// The final report: text for people, json for programs (on standard output).
    #[arg(long, value_enum, default_value_t = OutputArg::Text)]
    pub(crate) output: OutputArg,
    /// Progress: a bar on a terminal, plain lines elsewhere.
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto)]
    pub(crate) progress: ProgressArg,
    /// Address to serve metrics on (https, self-signed).
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Label ownerUID of the progress metric.
    #[arg(long, value_name = "UID", default_value = "")]
    pub(crate) owner_uid: String,
}

/// Log level.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub(crate) struct LogArgs {
    /// How much is logged: 1 info, 3 debug, 5 trace. Warnings only, if not given.
    #[arg(short, long = "v", value_name = "N", num_args = 0..=1, default_missing_value = "1", require_equals = true)]
    pub(crate) v: Option<u8>,
    /// Log as JSON lines.
    #[arg(long)]
    pub(crate) log_json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    Raw,
    Qcow2,
    Vmdk,
    #[value(alias = "vpc")]
    Vhd,
    Vhdx,
    Vdi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheArg {
    None,
    Default,
    Writeback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    Auto,
    #[value(name = "io_uring")]
    IoUring,
    Pwrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputArg {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressArg {
    Auto,
    Plain,
    None,
}

/// Longest time that can be asked for, in seconds.
const WEEK: u64 = 7 * 24 * 3600;

/// A quantity from `least` to `most`; the bounds as they are typed.
fn size(text: &str, least: &str, most: &str) -> Result<u64, String> {
    let bytes = |text: &str| quantity::bytes(text).map_err(|e| e.to_string());
    let value = bytes(text)?;
    if (bytes(least)?..=bytes(most)?).contains(&value) {
        return Ok(value);
    }
    Err(format!("not between {least} and {most}"))
}

/// No file and no device is larger than 8 EiB.
fn disk_size(text: &str) -> Result<u64, String> {
    size(text, "1", "7Ei")
}

/// Less does not hold a few buffers; more than this is a mistake.
fn memory(text: &str) -> Result<u64, String> {
    size(text, "8Mi", "4Gi")
}

/// The least an xz dictionary has, and the most.
fn window(text: &str) -> Result<u64, String> {
    size(text, "4Ki", "4Gi")
}

fn overhead(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "not a number from 0 to 1".to_owned())
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Import.
    Import(Box<Config>),
    /// Look at an image.
    Inspect(Box<Inspect>),
    /// Which version the environment's source has.
    Version,
    /// A completion script.
    Completion(clap_complete::Shell),
    /// Nothing was named: the environment decides.
    Nothing,
}

/// Looking at an image.
#[derive(Debug)]
pub(crate) struct Inspect {
    pub(crate) location: Location,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) format: Option<Format>,
    pub(crate) output: Output,
}

impl Args {
    /// Parses a command line, program name first.
    ///
    /// # Errors
    /// clap's, which knows whether it is help, version or a mistake.
    pub fn parse_from_os(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(arguments)
    }

    /// The log switches, wherever they were given.
    pub(crate) fn logs(&self) -> LogArgs {
        match &self.command {
            Some(Command::Inspect { logs, .. }) => *logs,
            Some(Command::Completion { .. }) | None => self.logs,
        }
    }

    /// The configuration that the arguments ask for. Reads the files that hold secrets. `terminal`: whether progress is seen.
    ///
    /// # Errors
    /// Contradictory options, or a file that cannot be read.
    pub(crate) fn into_invocation(
        self,
        terminal: bool,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Invocation, Error> {
        // Exhaustive: a new flag is given a meaning here or does not compile.
        let Self { command, source, target, import, from, logs: _ } = self;
        match (command, source, target) {
            (Some(Command::Completion { shell }), _, _) => Ok(Invocation::Completion(shell)),
            (Some(Command::Inspect { source: None, .. }), _, _) => match env(SOURCE_VARIABLE) {
                Some(_) => Ok(Invocation::Version),
                None => Err(Error::usage("a source is missing: name the image to inspect")),
            },
            (Some(Command::Inspect { source: Some(source), from, output, logs: _ }), _, _) => {
                let location = from.location(&source)?;
                let (access, limits, format) = from.meaning(env)?;
                Ok(Invocation::Inspect(Box::new(Inspect {
                    location,
                    access,
                    limits,
                    format,
                    output: output.into(),
                })))
            }
            (None, None, _) => Ok(Invocation::Nothing),
            (None, Some(_), None) => {
                Err(Error::usage("a target is missing: name the file or block device to write the disk to"))
            }
            (None, Some(source), Some(target)) => {
                let location = from.location(&source)?;
                Ok(Invocation::Import(Box::new(config(location, target, import, from, terminal, env)?)))
            }
        }
    }
}

fn config(
    location: Location,
    target: PathBuf,
    import: ImportArgs,
    from: FromArgs,
    terminal: bool,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Config, Error> {
    let (access, limits, format) = from.meaning(env)?;
    let ImportArgs {
        size,
        checksum,
        archive,
        preallocate,
        force,
        journal,
        scratch,
        cache,
        engine,
        overhead,
        memory,
        output,
        progress,
        metrics,
        owner_uid,
    } = import;
    if archive && (format.is_some() || size.is_some() || preallocate) {
        return Err(Error::usage(
            "--archive unpacks files: --format, --size and --preallocate are for disks",
        ));
    }
    if target.as_os_str() == "-" {
        return Err(Error::usage(
            "the target - would be standard output, and a disk is not written forward only: name a file or a block device (a file of that name is ./-)",
        ));
    }
    if location == Location::Blank && (checksum.is_some() || format.is_some()) {
        return Err(Error::usage("an empty disk has no content: --checksum and --format are for images"));
    }
    for (flag, folder) in [("--journal", &journal), ("--scratch", &scratch)] {
        if let Some(folder) = folder.as_deref().filter(|folder| !folder.is_dir()) {
            let shown = folder.display();
            return Err(Error::usage(format!("{flag} {shown} is no folder; name one that exists")));
        }
    }
    let limits = Limits { memory: usize::try_from(memory).unwrap_or(usize::MAX), ..limits };
    Ok(Config {
        location,
        access,
        volume: volume::Config {
            contract: Contract::CommandLine,
            holds: if archive { Holds::Files } else { Holds::Disk },
            place: Place::Path(target),
            owner: None,
            scratch,
            remember: true,
            journal,
            size,
            overhead,
            preallocate,
            direct: cache != CacheArg::Writeback,
            engine: match engine {
                EngineArg::Auto => None,
                EngineArg::IoUring => Some(EngineKind::IoUring),
                EngineArg::Pwrite => Some(EngineKind::Pwrite),
            },
            checksum,
            format,
            force,
            limits: limits.transfer(),
        },
        limits,
        output: output.into(),
        show: match (progress, terminal) {
            (ProgressArg::Auto, true) => Show::Bar,
            (ProgressArg::Auto, false) | (ProgressArg::Plain, _) => Show::Plain,
            (ProgressArg::None, _) => Show::None,
        },
        owner_uid,
        metrics,
        termination_log: None,
    })
}

impl From<OutputArg> for Output {
    fn from(arg: OutputArg) -> Self {
        match arg {
            OutputArg::Text => Self::Text,
            OutputArg::Json => Self::Json,
        }
    }
}

impl FormatArg {
    fn meaning(self) -> Format {
        match self {
            Self::Raw => Format::Raw,
            Self::Qcow2 => Format::Qcow2,
            Self::Vmdk => Format::Vmdk,
            Self::Vhd => Format::Vhd,
            Self::Vhdx => Format::Vhdx,
            Self::Vdi => Format::Vdi,
        }
    }
}

impl FromArgs {
    /// Where the image is, typed as `text`.
    fn location(&self, source: &OsStr) -> Result<Location, Error> {
        // A value that is not UTF-8 is a file name.
        let location = match source.to_str() {
            Some(text) => Location::parse(text)?,
            None => Location::File(PathBuf::from(source)),
        };
        if self.node_pull { node_pull(location) } else { Ok(location) }
    }

    fn meaning(
        self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<(Access, Limits, Option<Format>), Error> {
        let Self {
            format,
            header,
            secret_header_file,
            user_file,
            cacert,
            insecure,
            google_credentials,
            architecture,
            registry_auth_file,
            http_proxy,
            https_proxy,
            no_proxy,
            node_pull: _,
            ready_file,
            done_file,
            connections,
            window_limit,
            stall,
            patience,
        } = self;
        let mut secret_headers = Vec::new();
        for path in secret_header_file {
            let lines = read_text(&path)?;
            secret_headers.extend(lines.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned));
        }
        let user = user_file.map(|path| read_text(&path).and_then(|text| parse_user(&text))).transpose()?;
        let access = Access {
            headers: header,
            secret_headers,
            user,
            authorities: cacert,
            insecure,
            registry_auth_file: registry_auth_file.or_else(|| docker_login(&env)),
            proxy: Proxy { http: http_proxy, https: https_proxy, none_for: no_proxy }
                .or(Proxy::from_env(env)),
            google_credentials,
            architecture,
            ready_file,
            done_file,
        };
        let limits = Limits {
            window: window_limit,
            connections: connections.into(),
            stall: Duration::from_secs(stall),
            patience: Duration::from_secs(patience),
            ..Limits::default()
        };
        Ok((access, limits, format.map(FormatArg::meaning)))
    }
}

/// Configuration file of `docker login`, if it exists.
fn docker_login(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let folder = env("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| env("HOME").map(|home| PathBuf::from(home).join(".docker")))?;
    Some(folder.join("config.json")).filter(|path| path.is_file())
}

fn read_text(path: &std::path::Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|e| Error::with(Kind::Usage, format!("cannot read {}", path.display()), e))
}

/// A user and a secret, on two lines or with a colon between them.
fn parse_user(text: &str) -> Result<User, Error> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let (name, secret) = match lines.next() {
        Some(second) => (first, second),
        None => first.split_once(':').ok_or_else(|| {
            Error::usage("the user file is neither two lines, user and password, nor one line user:password")
        })?,
    };
    Ok(User { name: name.to_owned(), secret: secret.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(line: &[&str]) -> Result<Invocation, Error> {
        let arguments = std::iter::once("importer").chain(line.iter().copied()).map(OsString::from);
        Args::parse_from_os(arguments).unwrap().into_invocation(false, |_| None)
    }

    #[test]
    fn clap_finds_no_fault() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_first_word_is_a_source_or_a_subcommand() {
        let Invocation::Import(config) = parsed(&["https://h/i", "d.img", "--size", "1Gi", "-v=3"]).unwrap()
        else {
            panic!()
        };
        assert_eq!((config.volume.size, config.volume.contract), (Some(1 << 30), Contract::CommandLine));
        assert_eq!(config.volume.place, Place::Path("d.img".into()));
        assert_eq!(config.show, Show::Plain);
        assert!(
            matches!(parsed(&["inspect", "i"]).unwrap(), Invocation::Inspect(i) if i.location.word() == "file")
        );
        assert!(matches!(parsed(&["./inspect", "d"]).unwrap(), Invocation::Import(_)));
        assert!(
            matches!(parsed(&["-", "d"]).unwrap(), Invocation::Import(c) if c.location == Location::Stdin)
        );
        assert!(matches!(parsed(&[]).unwrap(), Invocation::Nothing));
        assert!(matches!(parsed(&["-v=1"]).unwrap(), Invocation::Nothing));
        assert!(matches!(parsed(&["completion", "bash"]).unwrap(), Invocation::Completion(_)));
        assert_eq!(parsed(&["i"]).unwrap_err().kind(), Kind::Usage);
        assert_eq!(parsed(&["i", "d", "--archive", "--size=1"]).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn verbosity_is_klogs() {
        for (flag, expected) in [("-v=3", 3), ("--v=5", 5), ("-v", 1)] {
            let arguments = ["importer", flag].map(OsString::from);
            assert_eq!(Args::parse_from_os(arguments).unwrap().logs().v, Some(expected), "{flag}");
        }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for line in [
            &["i", "d", "--size", "big"][..],
            &["i", "d", "--checksum", "crc:1"],
            &["i", "d", "--format", "qcow"],
            &["i", "d", "--connections", "0"],
            &["i", "d", "--overhead", "2"],
            &["i", "d", "x"],
            &["i", "d", "--nonsense"],
        ] {
            let arguments = std::iter::once("importer").chain(line.iter().copied()).map(OsString::from);
            assert_eq!(Args::parse_from_os(arguments).unwrap_err().exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn every_environment_setting_has_an_option() {
        let Invocation::Import(config) = parsed(&[
            "http://localhost:8100/disk.img",
            "d",
            "--node-pull",
            "--ready-file=/r",
            "--done-file=/d",
            "--http-proxy=http://p:1",
            "--owner-uid=1-2-3",
        ])
        .unwrap() else {
            panic!()
        };
        assert!(matches!(config.location, Location::NodePull(_)));
        assert_eq!(config.access.ready_file, Some("/r".into()));
        assert_eq!(config.access.done_file, Some("/d".into()));
        assert_eq!(config.owner_uid, "1-2-3");
        assert_eq!(parsed(&["docker://r/i", "d", "--node-pull"]).unwrap_err().kind(), Kind::Usage);
        let ready_alone = ["importer", "http://h/", "d", "--ready-file=/r"].map(OsString::from);
        assert_eq!(Args::parse_from_os(ready_alone).unwrap_err().exit_code(), 2);

        // A flag takes precedence over its variable.
        let arguments = ["importer", "http://h/", "d", "--http-proxy=http://typed"].map(OsString::from);
        let set = |name: &str| ["http_proxy", "no_proxy"].contains(&name).then(|| format!("set-{name}"));
        let Invocation::Import(config) =
            Args::parse_from_os(arguments).unwrap().into_invocation(false, set).unwrap()
        else {
            panic!()
        };
        let proxy =
            Proxy { http: Some("http://typed".into()), https: None, none_for: Some("set-no_proxy".into()) };
        assert!(config.access.proxy == proxy);
    }

    #[test]
    fn users_come_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user");
        let file = path.to_str().unwrap();
        for (text, name, secret) in [("a:b:c\n", "a", "b:c"), ("a:b\nc\n", "a:b", "c"), ("a\n\n", "a", "")] {
            std::fs::write(&path, text).unwrap();
            let Invocation::Import(config) = parsed(&["i", "d", "--user-file", file]).unwrap() else {
                panic!()
            };
            assert_eq!(
                config.access.user,
                Some(User { name: name.into(), secret: secret.into() }),
                "{text:?}"
            );
        }
        std::fs::write(&path, "nobody").unwrap();
        assert_eq!(parsed(&["i", "d", "--user-file", file]).unwrap_err().kind(), Kind::Usage);
        std::fs::write(&path, "A: 1\n\n B: 2\n").unwrap();
        let Invocation::Import(config) = parsed(&["i", "d", "--secret-header-file", file]).unwrap() else {
            panic!()
        };
        assert_eq!(config.access.secret_headers, ["A: 1", "B: 2"]);
    }
}
