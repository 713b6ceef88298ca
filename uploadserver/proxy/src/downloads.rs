//! Downloads of clients at upstream's paths, over plain HTTP: what makes the port reachable from outside adds TLS.
//!
//! ```text
//!  GET /amd64/linux/virtctl.tar.gz ─► known path? ─► in the administrator's folder? ─► in the image's folder? ─► the file
//!                                     404            else                             404 and what to do
//! ```
//! Only paths of [`api::downloads`] are looked for. A link in the administrator's folder is followed within it.
//!
//! Not here: connections and their limits (`serve`).

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::downloads::{ALL, Download, HEALTH_PATH};
use dir::Dir;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use rustix::fs::OFlags;
use serve::body;
use serve::route::{Answer, Call, Router, text};
use serve::server::Limits;

/// Limits of connections. None is ever busy: beyond the limit the oldest one ends, so that slow clients block no others.
pub(crate) const LIMITS: Limits = Limits {
    connections: 64,
    handshakes: 1,
    handshake_time: Duration::from_secs(5),
    head: 8 << 10,
    idle_time: Duration::from_secs(10),
    buffer: 16 << 10,
    read_ahead: 16 << 10,
    withdrawal: Duration::ZERO,
    closing: Duration::from_secs(10),
};

/// Where clients are found.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    /// The administrator's: asked first.
    pub(crate) supplied: PathBuf,
    /// The image's.
    pub(crate) own: PathBuf,
}

/// The server.
pub(crate) fn router(folders: Folders) -> Router {
    let folders = Arc::new(folders);
    let (of_index, of_files) = (Arc::clone(&folders), folders);
    Router::new()
        .get(HEALTH_PATH, |_| async { text(StatusCode::OK, "OK") })
        .get("/", move |_| {
            let folders = Arc::clone(&of_index);
            async move { blocking(move || index(&folders)).await }
        })
        .get("/{path...}", move |call: Call| {
            let folders = Arc::clone(&of_files);
            let path = call.parameter("path").to_owned();
            async move { blocking(move || download(&folders, &path)).await }
        })
}

/// Work with files, apart from the connections' threads.
async fn blocking(work: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| text(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down; retry\n"))
}

/// The paths that have a file.
fn index(folders: &Folders) -> Answer {
    let there = ALL.iter().filter(|one| matches!(open(folders, one), Ok(Some(_))));
    let lines: String = there.map(|one| format!("/{}\n", one.path)).collect();
    text(StatusCode::OK, lines)
}

fn download(folders: &Folders, path: &str) -> Answer {
    let Some(download) = ALL.iter().find(|one| one.path == path) else {
        let all: String = ALL.iter().map(|one| format!("/{}\n", one.path)).collect();
        return text(StatusCode::NOT_FOUND, format!("no such download; the paths are\n{all}"));
    };
    match open(folders, download) {
        Ok(Some((file, size))) => answer(download, file, size),
        Ok(None) => {
            let why = format!(
                "virtctl for {} is not supplied: put it as {} into the claim that `operator manifests \
                 --clients-claim` names\n",
                download.platform, download.path
            );
            text(StatusCode::NOT_FOUND, why)
        }
        Err(error) => {
            tracing::warn!(path, %error, "cannot read the file of a client program");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the file cannot be read; the process's log has the reason\n",
            )
        }
    }
}

/// The file and its size: the administrator's, else the image's.
fn open(folders: &Folders, download: &Download) -> Result<Option<(File, u64)>, dir::Error> {
    for folder in [&folders.supplied, &folders.own] {
        let Some(folder) = Dir::find(folder)? else { continue };
        let Some(file) = folder.links_beneath().file(download.path, OFlags::RDONLY)? else { continue };
        let size = file.metadata().map_err(|error| dir::Error::new("read the file's size", error))?.len();
        return Ok(Some((file, size)));
    }
    Ok(None)
}

fn answer(download: &Download, file: File, size: u64) -> Answer {
    let body = body::of_file(Arc::new(file), 0..size, |_| {});
    let mut answer = Response::new(body.map_err(Into::into).boxed_unsync());
    let (_, name) = download.path.rsplit_once('/').unwrap_or(("", download.path));
    let media = if name.ends_with(".zip") { "application/zip" } else { "application/gzip" };
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::try_from(format!("attachment; filename={name}")) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use api::downloads::OWN;

    use super::*;

    const MAC: &str = "arm64/mac/virtctl.zip";

    fn folders(root: &tempfile::TempDir) -> Folders {
        let [supplied, own] = ["supplied", "own"].map(|name| root.path().join(name));
        for folder in [&supplied, &own] {
            fs::create_dir_all(folder.join("amd64/linux")).unwrap();
            fs::create_dir_all(folder.join("arm64/mac")).unwrap();
        }
        fs::write(own.join(OWN), "ours").unwrap();
        Folders { supplied, own }
    }

    async fn get(folders: &Folders, path: &str) -> (u16, String) {
        let folders = folders.clone();
        let path = path.to_owned();
        let answer = blocking(move || download(&folders, &path)).await;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await;
        (
            status,
            body.map_or_else(
                |error| error.to_string(),
                |body| String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            ),
        )
    }

    #[tokio::test]
    async fn supplied_files_come_first_and_missing_ones_have_a_reason() {
        let root = tempfile::tempdir().unwrap();
        let folders = folders(&root);
        assert_eq!(get(&folders, OWN).await, (200, "ours".to_owned()));
        let (status, why) = get(&folders, MAC).await;
        assert_eq!(status, 404);
        assert!(
            why.contains("Mac for ARM 64") && why.contains(MAC) && why.contains("--clients-claim"),
            "{why}"
        );
        fs::write(folders.supplied.join(OWN), "theirs").unwrap();
        fs::write(folders.supplied.join(MAC), "zip").unwrap();
        assert_eq!(get(&folders, OWN).await, (200, "theirs".to_owned()));
        assert_eq!(get(&folders, MAC).await, (200, "zip".to_owned()));
        let (_, list) = {
            let answer = index(&folders);
            (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
        };
        assert_eq!(list, format!("/{OWN}\n/{MAC}\n"));
        // Without the volume there is no folder.
        fs::remove_dir_all(&folders.supplied).unwrap();
        assert_eq!(get(&folders, OWN).await, (200, "ours".to_owned()));
    }

    #[tokio::test]
    async fn nothing_but_the_downloads_is_served() {
        let root = tempfile::tempdir().unwrap();
        let folders = folders(&root);
        let secret = root.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        fs::write(folders.supplied.join("amd64/linux/other"), "other").unwrap();
        for path in [
            "",
            "amd64/linux/other",
            "amd64/linux",
            "../secret",
            "amd64/linux/../../../secret",
            "/etc/passwd",
        ] {
            let (status, text) = get(&folders, path).await;
            assert_eq!(status, 404, "{path}");
            assert!(text.starts_with("no such download"), "{path}: {text}");
        }
        // A link out of the folder, a FIFO and a directory are no clients.
        symlink(&secret, folders.supplied.join(MAC)).unwrap();
        assert_eq!(get(&folders, MAC).await.0, 500);
        fs::remove_file(folders.supplied.join(MAC)).unwrap();
        fs::create_dir(folders.supplied.join(MAC)).unwrap();
        assert_eq!(get(&folders, MAC).await.0, 500);
    }
}
