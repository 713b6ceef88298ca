//! The handshake of a connection: TLS, structured replies, the context of block status, the export. One question at a
//! time. Not here: requests (`connection`), what the words look like (`wire`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::address::{Address, Server};
use super::failure::{Failure, FailureKind};
use super::wire::{self, Export, Info, Nonsense, Opt, OptError, Reply};

/// Exports named when the one that was asked for is not there.
const NAMED: usize = 8;
/// Replies to one option at most.
const REPLIES: usize = 1024;

/// Parameters of a connection.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) address: Address,
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
    /// For all of the handshake.
    pub(super) patience: Duration,
}

/// The transport.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}
/// Plain or TLS.
pub(super) type Stream = Box<dyn Socket>;

/// The negotiated parameters.
pub(super) struct Agreed {
    pub(super) stream: Stream,
    pub(super) export: Export,
    /// Whether reads are answered by structured replies.
    pub(super) structured: bool,
    /// The context of block status, if the server has one.
    pub(super) context: Option<u32>,
}

/// Connects and agrees on the export and how to talk about it, within the dial's patience.
pub(super) async fn connect_and_negotiate(dial: &Dial) -> Result<Agreed, Failure> {
    let late = || {
        let seconds = dial.patience.as_secs_f32();
        let what = format!(
            "no NBD handshake within {seconds} s; the server may be busy with another client and take no second one"
        );
        Err(Failure::new(FailureKind::Lost, what))
    };
    timeout(dial.patience, negotiate(dial)).await.unwrap_or_else(|_| late())
}

async fn negotiate(dial: &Dial) -> Result<Agreed, Failure> {
    let mut talk = Talk { stream: connect(&dial.address.server).await? };
    let export = &dial.address.export;
    let flags = talk.exchange_flags().await?;
    let fixed = flags & wire::FIXED_NEWSTYLE != 0;
    if let Some(config) = &dial.tls {
        if !fixed {
            return Err(Failure::new(FailureKind::Refused, "the server is too old for TLS"));
        }
        talk = talk.start_tls(config, &dial.address.server).await?;
    }
    let padded = flags & wire::NO_ZEROES == 0;
    if !fixed {
        let export = talk.export_name(export, padded).await?;
        return Ok(Agreed { stream: talk.stream, export, structured: false, context: None });
    }
    let structured = matches!(talk.ask(Opt::StructuredReply, &[]).await?.as_slice(), [Reply::Ack]);
    let mut context = None;
    if structured {
        for reply in talk.ask(Opt::SetMetaContext, &wire::allocation_of(export)).await? {
            if let Reply::MetaContext(id) = reply {
                context = Some(id);
            }
        }
    }
    let export = match talk.negotiate_export(export).await? {
        Some(export) => export,
        None => talk.export_name(export, padded).await?,
    };
    Ok(Agreed { stream: talk.stream, export, structured, context })
}

async fn connect(server: &Server) -> Result<Stream, Failure> {
    match server {
        Server::Tcp(host, port) => {
            let failed =
                |e| Failure::with(FailureKind::Lost, format!("cannot connect to {host} port {port}"), e);
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
            // Neither is worth an error: small requests at once, and a word when the peer is gone for good.
            drop(stream.set_nodelay(true));
            let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
            Ok(Box::new(stream))
        }
        Server::Unix(path) => {
            let failed =
                |e| Failure::with(FailureKind::Lost, format!("cannot connect to {}", path.display()), e);
            Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?))
        }
    }
}

/// The handshake's conversation: one question at a time.
struct Talk {
    stream: Stream,
}

fn broke(error: io::Error) -> Failure {
    Failure::with(FailureKind::Lost, "the connection broke during the NBD handshake", error)
}

impl Talk {
    async fn read_array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).await.map_err(broke)?;
        Ok(bytes)
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(bytes).await.map_err(broke)?;
        self.stream.flush().await.map_err(broke)
    }

    /// The server's flags, answered.
    async fn exchange_flags(&mut self) -> Result<u16, Failure> {
        let magic = u64::from_be_bytes(self.read_array().await?);
        if magic != wire::GREETING {
            return Err(Failure::new(
                FailureKind::Nonsense,
                "the server does not speak NBD: check the address and port",
            ));
        }
        match u64::from_be_bytes(self.read_array().await?) {
            wire::NEWSTYLE => {}
            wire::OLDSTYLE => {
                return Err(Failure::new(
                    FailureKind::Refused,
                    "the server speaks only oldstyle NBD; use one with fixed newstyle negotiation, such as qemu-nbd",
                ));
            }
            _ => {
                return Err(Failure::new(
                    FailureKind::Nonsense,
                    "the server does not speak NBD: check the address and port",
                ));
            }
        }
        let flags = u16::from_be_bytes(self.read_array().await?);
        let ours = u32::from(flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES));
        self.send(&ours.to_be_bytes()).await?;
        Ok(flags)
    }

    async fn start_tls(
        mut self,
        config: &Arc<rustls::ClientConfig>,
        server: &Server,
    ) -> Result<Self, Failure> {
        match self.ask(Opt::StartTls, &[]).await?.as_slice() {
            [Reply::Ack] => {}
            [Reply::Error(_, words)] => {
                let what = format!("the server offers no TLS ({words}); use nbd:// if that is acceptable");
                return Err(Failure::new(FailureKind::Refused, what));
            }
            _ => return Err(Nonsense("TLS is neither granted nor refused".to_owned()).into()),
        }
        let host = match server {
            Server::Tcp(host, _) => host.clone(),
            Server::Unix(_) => "localhost".to_owned(),
        };
        let name = rustls::pki_types::ServerName::try_from(host).map_err(|_| {
            Failure::new(
                FailureKind::Refused,
                "the host in the address cannot be verified by TLS: use a DNS name or an IP address",
            )
        })?;
        let connector = tokio_rustls::TlsConnector::from(config.clone());
        let stream = connector.connect(name, self.stream).await.map_err(|e| {
            // A certificate does not become valid by asking again; a broken connection may be whole then.
            let final_ = e.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
            let trouble = if final_ { FailureKind::Refused } else { FailureKind::Lost };
            Failure::with(trouble, "TLS with the server failed", e)
        })?;
        Ok(Self { stream: Box::new(stream) })
    }

    /// All replies to an option, the last one an end (`Ack` or `Error`).
    async fn ask(&mut self, opt: Opt, data: &[u8]) -> Result<Vec<Reply>, Failure> {
        self.send(&wire::option(opt, data)).await?;
        let mut replies = Vec::new();
        loop {
            let (kind, len) = wire::reply_head(&self.read_array().await?, opt)?;
            let mut data = vec![0; len];
            self.stream.read_exact(&mut data).await.map_err(broke)?;
            let reply = wire::reply(kind, &data)?;
            if let Reply::Error(OptError::TlsRequired, _) = reply {
                let what = "the server wants TLS: use nbds:// instead of nbd://";
                return Err(Failure::new(FailureKind::Refused, what));
            }
            let end = match &reply {
                Reply::Ack | Reply::Error(..) => true,
                Reply::Server(_) | Reply::Info(_) | Reply::MetaContext(_) => false,
            };
            replies.push(reply);
            if end {
                return Ok(replies);
            }
            if replies.len() >= REPLIES {
                return Err(Nonsense(format!("{REPLIES} replies to one option")).into());
            }
        }
    }

    /// Chooses the export; `None` if the server does not know how to be asked so.
    async fn negotiate_export(&mut self, export: &str) -> Result<Option<Export>, Failure> {
        let mut facts = None;
        let mut block = wire::BlockSize::default();
        for reply in self.ask(Opt::Go, &wire::go(export)).await? {
            match reply {
                Reply::Info(Info::Export { size, flags }) => facts = Some((size, flags)),
                Reply::Info(Info::BlockSize(sizes)) => block = sizes,
                Reply::Info(Info::Other) | Reply::Server(_) | Reply::MetaContext(_) => {}
                Reply::Ack => {
                    let Some((size, flags)) = facts else {
                        return Err(Nonsense("the server did not send the export's size".to_owned()).into());
                    };
                    return Ok(Some(Export::checked(size, flags, block)?));
                }
                Reply::Error(OptError::Unsupported, _) => return Ok(None),
                Reply::Error(OptError::UnknownExport, words) => {
                    return Err(self.unknown_export(export, &words).await);
                }
                Reply::Error(OptError::Shutdown, _) => {
                    return Err(Failure::new(FailureKind::Lost, "the server is shutting down"));
                }
                Reply::Error(error, words) => {
                    let what = format!("the server refuses the export \"{export}\": {words} ({error:?})");
                    return Err(Failure::new(FailureKind::Refused, what));
                }
            }
        }
        Err(Nonsense("the choice of the export has no answer".to_owned()).into())
    }

    /// How to handle a missing export.
    async fn unknown_export(&mut self, export: &str, words: &str) -> Failure {
        let replies = self.ask(Opt::List, &[]).await.unwrap_or_default();
        let listed: Vec<String> = replies
            .into_iter()
            .filter_map(|reply| match reply {
                Reply::Server(name) => Some(name),
                Reply::Ack | Reply::Info(_) | Reply::MetaContext(_) | Reply::Error(..) => None,
            })
            .collect();
        let words = if words.is_empty() { String::new() } else { format!(" ({words})") };
        if listed.iter().any(|name| name == export) {
            let which = match export {
                "" => "its default export".to_owned(),
                export => format!("the export \"{export}\""),
            };
            let what = format!(
                "the server lists {which} and does not serve it{words}: check the server's log, or name another export after the last slash of the address"
            );
            return Failure::new(FailureKind::Refused, what);
        }
        let names: Vec<String> = listed.iter().take(NAMED).map(|name| format!("\"{name}\"")).collect();
        let offer = match names.as_slice() {
            [] => "it does not list its exports".to_owned(),
            names => format!("it has {}", names.join(", ")),
        };
        let what = format!(
            "the server has no export \"{export}\"{words}: name another one after the last slash of the address; {offer}"
        );
        Failure::new(FailureKind::Refused, what)
    }

    /// Chooses the export the old way, which has no answer but its facts.
    async fn export_name(&mut self, export: &str, padded: bool) -> Result<Export, Failure> {
        self.send(&wire::option(Opt::ExportName, export.as_bytes())).await?;
        let mut facts = [0; 10];
        self.stream.read_exact(&mut facts).await.map_err(|e| {
            let what = format!(
                "the server closed the connection when asked for the export \"{export}\": check that the server has it"
            );
            Failure::with(FailureKind::Lost, what, e)
        })?;
        let facts = wire::export_facts(&facts)?;
        if padded {
            self.read_array::<124>().await?;
        }
        Ok(facts)
    }
}
