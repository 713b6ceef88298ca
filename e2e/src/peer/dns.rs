//! The cluster's DNS, limited to names of Services, for pods that are configured to use it: a name is answered from the API
//! server's present state. A Service with an address gives that, a headless one those of its pods that are ready.
//!
//! Not here: anything beyond `SERVICE.NAMESPACE.svc.cluster.local` and addresses of IPv4.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::UdpSocket;

use crate::place::Place;

/// The port of resolvers; a pod cannot use another.
const PORT: u16 = 53;
/// The suffix of names in the cluster.
const DOMAIN: &str = ".svc.cluster.local";
/// The only type of record that has answers, and one that has none.
const A: u16 = 1;

/// A running server, in this process.
#[derive(Debug)]
pub struct Dns {
    host: Ipv4Addr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Dns {
    /// Answers at the host's address of `place`.
    ///
    /// # Errors
    /// When another server does.
    pub fn start(place: &Place, client: Client) -> Result<Self> {
        let host = place.host_address();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let socket = runtime
            .block_on(UdpSocket::bind((host, PORT)))
            .with_context(|| format!("cannot answer DNS at {host}"))?;
        runtime.spawn(async move {
            let mut query = [0; 512];
            while let Ok((got, from)) = socket.recv_from(&mut query).await {
                let Some(asked) = query.get(..got).and_then(Asked::read) else { continue };
                let found = addresses(&client, &asked.name).await;
                // The client repeats a lost query.
                let _ = socket.send_to(&asked.answer(found.as_deref()), from).await;
            }
        });
        Ok(Self { host, runtime: Some(runtime) })
    }

    /// The part of a pod's specification that makes a pod of `namespace` use it, with the kubelet's search domains.
    pub fn of_pod(&self, namespace: &str) -> Value {
        let searches = [format!("{namespace}{DOMAIN}"), "svc.cluster.local".into(), "cluster.local".into()];
        json!({
            "dnsPolicy": "None",
            "dnsConfig": {
                "nameservers": [self.host],
                "searches": searches,
                "options": [{"name": "ndots", "value": "5"}],
            },
        })
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The addresses of a name; `None` when there is no such name.
async fn addresses(client: &Client, name: &str) -> Option<Vec<Ipv4Addr>> {
    let (service, namespace) = name.strip_suffix(DOMAIN)?.split_once('.')?;
    let found = Api::<Service>::namespaced(client.clone(), namespace).get_opt(service).await.ok()??;
    let address = found.spec?.cluster_ip?;
    if address != "None" {
        return Some(address.parse().into_iter().collect());
    }
    let endpoints = Api::<Endpoints>::namespaced(client.clone(), namespace).get_opt(service).await.ok()?;
    let subsets = endpoints.and_then(|endpoints| endpoints.subsets).unwrap_or_default();
    let ready = subsets.into_iter().flat_map(|subset| subset.addresses.unwrap_or_default());
    Some(ready.filter_map(|address| address.ip.parse().ok()).collect())
}

/// A query with one question (RFC 1035, 4.1).
struct Asked<'a> {
    id: [u8; 2],
    /// The question as it came.
    question: &'a [u8],
    /// In lower case, without the last dot.
    name: String,
    kind: u16,
}

impl<'a> Asked<'a> {
    fn read(query: &'a [u8]) -> Option<Self> {
        let (head, rest) = query.split_first_chunk::<12>()?;
        let (mut labels, mut at) = (Vec::new(), 0);
        loop {
            let len = usize::from(*rest.get(at)?);
            at += 1;
            if len == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(rest.get(at..at + len)?).to_ascii_lowercase());
            at += len;
        }
        let kind = rest.get(at..at + 2)?;
        let question = rest.get(..at + 4)?;
        let [first, second, ..] = *head;
        let kind = u16::from_be_bytes(kind.try_into().ok()?);
        Some(Self { id: [first, second], question, name: labels.join("."), kind })
    }

    fn answer(&self, found: Option<&[Ipv4Addr]>) -> Vec<u8> {
        let addresses = found.filter(|_| self.kind == A).unwrap_or_default();
        let no_such_name = u8::from(found.is_none()) * 3;
        let count = u16::try_from(addresses.len()).unwrap_or(0).to_be_bytes();
        // An answer with authority, to a question that wished for recursion, which there is.
        let mut answer = [&self.id[..], &[0x85, 0x80 | no_such_name, 0, 1], &count, &[0; 4]].concat();
        answer.extend_from_slice(self.question);
        for address in addresses {
            // The question's name, its type and class, one second, four bytes.
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
            answer.extend_from_slice(&address.octets());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(kind: u8) -> Vec<u8> {
        let head = [7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        [&head[..], b"\x01A\x02ns\x03svc\x00\x00", &[kind, 0, 1], b"more"].concat()
    }

    #[test]
    fn questions_are_read_and_answered() {
        let query_a = query(1);
        let asked = Asked::read(&query_a).unwrap();
        assert_eq!((asked.name.as_str(), asked.kind), ("a.ns.svc", A));
        let answer = asked.answer(Some(&[Ipv4Addr::new(10, 0, 0, 7)]));
        assert_eq!(answer[..12], [7, 9, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(answer[answer.len() - 4..], [10, 0, 0, 7]);
        assert_eq!(asked.answer(None)[3], 0x83);
        // Of another type nothing is known, and the name is one all the same.
        let query_aaaa = query(28);
        let answer = Asked::read(&query_aaaa).unwrap().answer(Some(&[Ipv4Addr::LOCALHOST]));
        assert_eq!((answer[3], answer[7]), (0x80, 0));
        for cut in 0..query_a.len() - 4 {
            assert!(Asked::read(&query_a[..cut]).is_none(), "{cut}");
        }
    }
}
