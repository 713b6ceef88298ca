//! The steps of the OpenShift console (kubevirt-plugin, `src/utils/hooks/useCDIUpload`), in Chromium without a screen: a
//! page of another origin with a real form, whose requests the browser judges by the proxy's certificate and CORS headers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use e2e::volume::Volume;
use serde_json::{Value, json};

use crate::upload::controller::{Controller, clean_up};
use crate::upload::disks::{Disk, folder};
use crate::upload::objects::{create, described, ended, get};
use crate::upload::site::PROXY;
use crate::upload::{CLUSTER, MIB, SITE, namespace};

/// How long the browser may take.
const TIMEOUT: Duration = Duration::from_secs(180);
const NAME: &str = "disk";

/// The console's server, as far as the page needs it; ends with the process.
struct Console {
    address: SocketAddr,
    reports: Receiver<Value>,
}

impl Console {
    fn start(namespace: &'static str, image: PathBuf, size: u64) -> Self {
        // The page and the proxy must be of different origins; which address this is does not matter.
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, reports) = channel();
        let image = Arc::new(image);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (image, sender) = (image.clone(), sender.clone());
                std::thread::spawn(move || serve_connection(&stream, namespace, &image, size, &sender));
            }
        });
        Self { address, reports }
    }

    /// The final report of the page.
    fn report(&self, browser: &Browser) -> Value {
        let report = self.reports.recv_timeout(TIMEOUT);
        report.unwrap_or_else(|_| {
            panic!("the page does not come to its end\n{}\n{}", browser.log(), described())
        })
    }
}

fn serve_connection(
    stream: &TcpStream,
    namespace: &str,
    image: &std::path::Path,
    size: u64,
    reports: &Sender<Value>,
) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 {
                return;
            }
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let path = line.split(' ').nth(1).unwrap().split('?').next().unwrap();
        let (kind, answer) = match path {
            "/" => ("text/html", include_bytes!("page.html").to_vec()),
            "/disk.qcow2" => ("application/octet-stream", std::fs::read(image).unwrap()),
            "/data-volume" => {
                create("DataVolume", namespace, data_volume(size));
                ("text/plain", Vec::new())
            }
            "/phase" => {
                let found = get("DataVolume", namespace, NAME).unwrap_or_default();
                ("text/plain", found["status"]["phase"].as_str().unwrap_or_default().into())
            }
            "/token" => ("text/plain", token(namespace).into_bytes()),
            "/report" => {
                let _ = reports.send(serde_json::from_slice(&body).unwrap());
                ("text/plain", Vec::new())
            }
            _ => ("text/plain", Vec::new()),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        if writer.write_all(&[head.as_bytes(), &answer].concat()).is_err() {
            return;
        }
    }
}

fn data_volume(size: u64) -> Value {
    json!({
        "metadata": {
            "name": NAME, "annotations": {"cdi.kubevirt.io/storage.bind.immediate.requested": "true"},
        },
        "spec": {
            "source": {"upload": {}},
            "storage": {
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "storageClassName": "",
                "resources": {"requests": {"storage": size.to_string()}},
            },
        },
    })
}

/// The console names its wish like the claim.
fn token(namespace: &str) -> String {
    let wish = json!({"metadata": {"name": NAME, "namespace": namespace}, "spec": {"pvcName": NAME}});
    create("UploadTokenRequest", namespace, wish)["status"]["token"].as_str().unwrap().to_owned()
}

/// Chromium; killed when dropped.
struct Browser {
    process: Child,
    log: PathBuf,
}

impl Browser {
    fn open(name: &str, url: &str, more: &[&str]) -> Self {
        let own = folder(name);
        let log = own.join("log");
        let output = std::fs::File::create(&log).unwrap();
        let map = format!("--host-resolver-rules=MAP {PROXY} {}", SITE.address);
        let process = Command::new("chromium")
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--no-proxy-server", "--disable-background-networking", "--disable-component-update"])
            .arg(format!("--user-data-dir={}", own.join("profile").display()))
            .arg(map)
            .args(more)
            .arg(url)
            .env("HOME", &own)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .expect("chromium is missing: `make deps` installs it");
        Self { process, log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
fn a_form_of_the_consoles_page() {
    let namespace = namespace("console");
    let disk = Disk::new("console");
    let _site = &*SITE;
    let _controller = Controller::start(namespace);
    let size = 128 * MIB;
    let volume = Volume::folder(&CLUSTER, namespace, NAME, size).unwrap();
    let console = Console::start(namespace, disk.qcow2(), size);
    let page = format!("http://{}/?proxy={PROXY}", console.address);
    // The proxy's certificate has no issuer that the browser knows: there is no answer, which the page reports.
    {
        let browser = Browser::open("console-strict", &page, &[]);
        let report = console.report(&browser);
        assert_eq!(report["certificate"], false, "{report}");
    }
    let browser = Browser::open("console-trusting", &page, &["--ignore-certificate-errors"]);
    let report = console.report(&browser);
    // The first look is answered with a status, whatever it is, that a page of another origin may see.
    assert_eq!((&report["certificate"], &report["first"]), (&json!(true), &json!(400)), "{report}");
    assert_eq!(report["refused"]["status"], 401, "{report}");
    assert_eq!(report["sent"]["status"], 200, "{report}\n{}", described());
    assert!(report["sent"]["progress"].as_u64().unwrap() > 0, "{report}");
    let message = ended(namespace, "cdi-upload-disk");
    assert_eq!(message, r#"{"preallocationApplied":false,"message":"Upload Complete"}"#);
    disk.assert_in(&volume);
    clean_up(namespace, NAME);
}
