//! Listening sockets: bound only if no other process listens there, removed at the end.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::identity::FileIdentity;
use qnic_config::MAX_SOCKET_PATH;

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("socket {} is in use by another process; stop it or choose another path", .0.display())]
    InUse(PathBuf),
    /// Something else has that name.
    #[error("{} exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The path does not fit into an address.
    #[error(
        "the path of socket {} has {} bytes, at most {MAX_SOCKET_PATH} fit; use a shorter directory",
        .0.display(), .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    /// No permission.
    #[error("no permission to make socket {}; check the directory's owner and mode", .0.display())]
    Permission(PathBuf),
    /// The directory does not exist.
    #[error("cannot make socket {}: its directory does not exist; create it first", .0.display())]
    NoDirectory(PathBuf),
    /// Something else.
    #[error("cannot listen on socket {}: {error}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
}

/// A listening socket. Its name goes away with it.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    identity: Option<FileIdentity>,
}

impl Socket {
    /// Listens on `path`. A socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// Returns [`SocketError`] if the path cannot be listened on.
    pub(crate) fn bind(path: &Path) -> Result<Self, SocketError> {
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(SocketError::TooLong(path.to_owned()));
        }
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path)
            }
            result => result,
        };
        let listener = listener.map_err(|error| refused(path, error))?;
        Ok(Socket {
            listener,
            path: path.to_owned(),
            identity: identity(path),
        })
    }

    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Socket {
    /// Removes the name, unless another process has taken it meanwhile.
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<FileIdentity> {
    std::fs::symlink_metadata(path).ok().map(Into::into)
}

/// Removes a socket on which no process listens.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let system = |error| refused(path, error);
    let kind = std::fs::symlink_metadata(path).map_err(system)?.file_type();
    if !kind.is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "removing a socket that a dead process left");
            std::fs::remove_file(path).map_err(system)
        }
        Err(error) => Err(system(error)),
    }
}

fn refused(path: &Path, error: std::io::Error) -> SocketError {
    let path = path.to_owned();
    match error.kind() {
        ErrorKind::AddrInUse => SocketError::InUse(path),
        ErrorKind::PermissionDenied => SocketError::Permission(path),
        ErrorKind::NotFound => SocketError::NoDirectory(path),
        _ => SocketError::System { path, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(path: &Path) -> String {
        Socket::bind(path).unwrap_err().to_string()
    }

    #[test]
    fn a_live_socket_is_refused_and_a_dead_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let first = Socket::bind(&path).unwrap();
        assert!(message(&path).contains("in use by another process"));
        drop(first);
        assert!(!path.exists(), "removed at the end");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left by a process that died");
        drop(Socket::bind(&path).unwrap());
    }

    #[test]
    fn a_name_that_another_process_took_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let socket = Socket::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
        drop(other);
    }

    #[test]
    fn mistakes_say_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(message(&file).contains("is not a socket"));
        assert!(message(&directory.path().join("no/a.sock")).contains("directory does not exist"));
        let long = directory.path().join("x".repeat(120));
        assert!(message(&long).contains("shorter directory"));
        assert!(message(Path::new("/proc/1/a.sock")).contains("socket /proc/1/a.sock"));
    }
}
