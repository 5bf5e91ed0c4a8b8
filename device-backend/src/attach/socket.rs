//! Listening sockets: bound only if no other process listens there, removed at the end.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure, Result};
use qnic_config::MAX_SOCKET_PATH;
use rustix::net::{
    bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::identity::FileIdentity;

/// A listening socket. Its name goes away with it.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    identity: Option<FileIdentity>,
}

impl Socket {
    /// Listens on `path`. A socket that a dead process left there is replaced.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        Self::bind_with(path, |path| UnixListener::bind(path))
    }

    /// The same for a socket that keeps the bounds of messages (SOCK_SEQPACKET).
    pub(crate) fn bind_messages(path: &Path) -> Result<Self> {
        Self::bind_with(path, |path| {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            listen(&socket, 16)?;
            Ok(socket.into())
        })
    }

    fn bind_with(path: &Path, listen: impl Fn(&Path) -> io::Result<UnixListener>) -> Result<Self> {
        let bytes = path.as_os_str().len();
        ensure!(
            bytes <= MAX_SOCKET_PATH,
            "the path of socket {} has {bytes} bytes, at most {MAX_SOCKET_PATH} fit; use a shorter \
             directory",
            path.display()
        );
        let listener = match listen(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                listen(path)
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
fn remove_stale(path: &Path) -> Result<()> {
    let system = |error| refused(path, error);
    let kind = std::fs::symlink_metadata(path).map_err(system)?.file_type();
    ensure!(
        kind.is_socket(),
        "{} exists and is not a socket; remove it or choose another path",
        path.display()
    );
    match UnixStream::connect(path) {
        Ok(_) => Err(refused(path, ErrorKind::AddrInUse.into())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "removing a socket that a dead process left");
            std::fs::remove_file(path).map_err(system)
        }
        Err(error) => Err(system(error)),
    }
}

/// Why `path` cannot be listened on, and what to do.
fn refused(path: &Path, error: io::Error) -> anyhow::Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::AddrInUse => {
            anyhow!("socket {path} is in use by another process; stop it or choose another path")
        }
        ErrorKind::PermissionDenied => {
            anyhow!("no permission to make socket {path}; check the directory's owner and mode")
        }
        ErrorKind::NotFound => {
            anyhow!("cannot make socket {path}: its directory does not exist; create it first")
        }
        _ => anyhow!("cannot listen on socket {path}: {error}"),
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
