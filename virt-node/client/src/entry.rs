//! Runs one command: arguments in, text and exit code out. The one place where errors become exit codes.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use crate::args::{self, Adm, Client, Create, Credentials, Dump, Local, Picture, Remote, Verb};
use crate::error::{Error, Kind, Result, usage};
use crate::guest::{Report, report};
use crate::output::{print, say};
use crate::power::{self, cancel_evacuation, cancel_migration, grace, send};
use crate::site::{Site, Which};
use crate::ssh::{self, Way};
use crate::target::{Target, TargetKind};
use crate::{
    adm, console, create, credentials, dump, expand, expose, forward, graph, upload, usb, version, vnc,
    volume,
};

/// How the program was started.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Shown in help texts.
    name: &'static str,
    /// Words that choose these commands when the program's own file is started, for ssh's ProxyCommand.
    words: &'static [&'static str],
}

impl Invocation {
    /// As `kubectl-virt`, which kubectl starts for `kubectl virt`.
    pub fn kubectl_plugin() -> Self {
        Self { name: "kubectl virt", words: &[] }
    }

    /// As a command of virt-node; `words` choose it there.
    pub fn inside(name: &'static str, words: &'static [&'static str]) -> Self {
        Self { name, words }
    }
}

/// Runs the command that `words` are, the program's name first.
pub fn run(invocation: &Invocation, words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let client = match args::parse(invocation.name, words.into_iter().collect()) {
        Ok(client) => client,
        Err(error) => {
            // clap prints help and version to standard output, mistakes to standard error.
            let printed = error.print();
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return if printed.is_err() && code == 0 { ExitCode::from(3) } else { ExitCode::from(code) };
        }
    };
    let answer = started(invocation, client).and_then(|text| print(&text));
    let Err(error) = answer else { return ExitCode::SUCCESS };
    say(&error::text(&error));
    ExitCode::from(match error.kind() {
        Kind::Refused => 1,
        Kind::Usage => 2,
        Kind::System => 3,
    })
}

fn started(invocation: &Invocation, client: Client) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(act(invocation, client));
    // A thread may wait for standard input without end.
    runtime.shutdown_background();
    done
}

async fn act(invocation: &Invocation, client: Client) -> Result<String> {
    let Client { which, verb } = client;
    match verb {
        Verb::Local(Local::Create { what: Create::Vm(options) }) => {
            create::vm(&options, which.namespace.as_deref())
        }
        Verb::Local(Local::Create { what: Create::Instancetype(options) }) => {
            create::flavor::instancetype(&options, which.namespace.as_deref())
        }
        Verb::Local(Local::Create { what: Create::Preference(options) }) => {
            create::flavor::preference(&options, which.namespace.as_deref())
        }
        Verb::Local(Local::Version { client: true, output }) => version::version(None, output).await,
        Verb::Local(Local::Version { client: false, output }) => {
            version::version(Some(&Site::open(&which)?), output).await
        }
        Verb::Local(Local::Completion { shell }) => Ok(completion(invocation, shell)),
        Verb::Remote(verb) => remote(invocation, &which, *verb).await,
    }
}

/// A verb that needs the cluster.
async fn remote(invocation: &Invocation, which: &Which, verb: Remote) -> Result<String> {
    let site = Site::open(which)?;
    let quiet = |done: Result<()>| done.map(|()| String::new());
    let machine = |name: &str| Target::machine(name);
    let kinded = |kind: TargetKind, name: &str| Target { kind, ..Target::machine(name) };
    match verb {
        Remote::Start { of, paused } => {
            send(&site, &machine(&of.name), &power::Verb::Start { paused }, of.dry_run).await
        }
        Remote::Stop { of, grace: typed } => {
            let grace = grace(typed.force, typed.grace_period)?;
            send(&site, &machine(&of.name), &power::Verb::Stop { grace }, of.dry_run).await
        }
        Remote::Restart { of, grace: typed } => {
            let grace = grace(typed.force, typed.grace_period)?;
            send(&site, &machine(&of.name), &power::Verb::Restart { grace }, of.dry_run).await
        }
        Remote::Pause(of) => send(&site, &kinded(of.kind, &of.name), &power::Verb::Pause, of.dry_run).await,
        Remote::Unpause(of) => {
            send(&site, &kinded(of.kind, &of.name), &power::Verb::Unpause, of.dry_run).await
        }
        Remote::SoftReboot { name } => {
            send(&site, &Target::instance(&name), &power::Verb::SoftReboot, false).await
        }
        Remote::Reset { name } => send(&site, &Target::instance(&name), &power::Verb::Reset, false).await,
        Remote::Migrate { of, added_node_selector } => {
            let verb = power::Verb::Migrate { selector: added_node_selector };
            send(&site, &machine(&of.name), &verb, of.dry_run).await
        }
        Remote::MigrateCancel(of) => cancel_migration(&site, &of.name, of.dry_run).await,
        Remote::EvacuateCancel(of) => cancel_evacuation(&site, &kinded(of.kind, &of.name), of.dry_run).await,
        Remote::Console { target, timeout } => {
            let patience = Duration::from_secs(timeout.saturating_mul(60));
            // Consoles belong to runs, which have their machine's name.
            let target = Target { kind: TargetKind::Instance, ..target };
            quiet(console::console(&site, &target, patience).await)
        }
        Remote::Vnc { picture: Some(Picture::Screenshot { name, file, move_cursor }), .. } => {
            quiet(vnc::screenshot(&site, &name, &file, move_cursor).await)
        }
        Remote::Vnc { picture: None, name, options } => {
            quiet(vnc::screen(&site, &name.unwrap_or_default(), options).await)
        }
        Remote::Usbredir { words, no_launch } => quiet(match (no_launch, words.as_slice()) {
            (false, [device, name]) => usb::redirect(&site, name, Some(device)).await,
            (true, [name]) => usb::redirect(&site, name, None).await,
            (false, _) => {
                usage("name a device, VENDOR:PRODUCT or BUS-DEVICE, and the VirtualMachineInstance")
            }
            (true, _) => usage("--no-launch is for the VirtualMachineInstance alone"),
        }),
        Remote::PortForward { target, ports, address, stdio } => quiet(match (stdio, ports.as_slice()) {
            (false, ports) => forward::forward(&site, &target, address, ports).await,
            (true, [port]) => forward::standard(&site, &target, *port).await,
            (true, _) => usage("--stdio is for one port"),
        }),
        Remote::Ssh { login, options, command } => {
            let way = way(invocation, which, &site, &login.guest)?;
            let failed = ssh::ssh(&way, login.user, options, command);
            missing("ssh", failed)
        }
        Remote::Scp { copy, options } => {
            let route = copy.route::<Target>().map_err(|text| Error::new(Kind::Usage, text))?;
            let Some(login) = route.guest() else {
                return usage("no argument names a path in a guest: write it as NAME:PATH");
            };
            let way = way(invocation, which, &site, &login.guest)?;
            missing("scp", ssh::scp(&way, &copy, route, options))
        }
        Remote::Guestosinfo(of) => report(&site, &of.name, Report::System, of.output).await,
        Remote::Userlist(of) => report(&site, &of.name, Report::Users, of.output).await,
        Remote::Fslist(of) => report(&site, &of.name, Report::FileSystems, of.output).await,
        Remote::AddVolume { name, volume } => volume::add(&site, &name, &volume).await,
        Remote::RemoveVolume { name, volume_name, persist: _, dry_run } => {
            volume::remove(&site, &name, &volume_name, dry_run).await
        }
        Remote::MemoryDump { action: Dump::Get { name, options } } => dump::get(&site, &name, &options).await,
        Remote::MemoryDump { action: Dump::Remove { name } } => {
            send(&site, &machine(&name), &power::Verb::ForgetDump, false).await
        }
        Remote::ImageUpload(options) => quiet(upload::upload(&site, &options).await),
        Remote::Expose(options) => expose::expose(&site, &options).await,
        Remote::Expand { vm: Some(name), output, .. } => expand::of_cluster(&site, &name, output).await,
        Remote::Expand { vm: None, file, output } => {
            expand::of_file(&site, &file.unwrap_or_else(|| "-".into()), output).await
        }
        Remote::ObjectGraph { name, vmi, exclude_optional, selector } => {
            let target = if vmi { Target::instance(&name) } else { machine(&name) };
            graph::graph(&site, &target, !exclude_optional, &selector).await
        }
        Remote::Credentials { action } => change_credentials(&site, *action).await,
        Remote::PermittedDevices => adm::permitted_devices(&site).await,
        Remote::Adm { action: Adm::LogVerbosity(levels) } => adm::log_verbosity(&site, &levels).await,
    }
}

/// A verb about SSH keys and passwords.
async fn change_credentials(site: &Site, action: Credentials) -> Result<String> {
    match action {
        Credentials::AddSshKey { of, key, create_secret, update_secret } => {
            let create = (create_secret || update_secret).then_some(create_secret);
            credentials::add_key(site, &of, &key, create).await
        }
        Credentials::RemoveSshKey { of, key } => credentials::remove_key(site, &of, &key).await,
        Credentials::SetPassword { of, password } => credentials::set_password(site, &of, &password).await,
    }
}

/// How ssh reaches a guest: this program with the same cluster.
fn way(invocation: &Invocation, which: &crate::site::Which, site: &Site, target: &Target) -> Result<Way> {
    let namespace = site.namespace(target);
    let mut words: Vec<OsString> = invocation.words.iter().map(OsString::from).collect();
    words.extend(which.words(namespace)?);
    Ok(Way::new(words, target.short(), &target.name, namespace)?)
}

fn missing(program: &str, failed: io::Result<std::convert::Infallible>) -> Result<String> {
    match failed {
        Ok(never) => match never {},
        Err(error) => {
            let text = format!("{program} cannot be started; on Debian: apt install openssh-client");
            Err(Error::with(Kind::System, text, error))
        }
    }
}

fn completion(invocation: &Invocation, shell: clap_complete::Shell) -> String {
    let mut command = <Client as clap::CommandFactory>::command();
    let mut script = Vec::new();
    let name = invocation.name.replace(' ', "-");
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
