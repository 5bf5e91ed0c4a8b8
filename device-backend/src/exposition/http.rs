//! As much HTTP as a scraper needs: `GET /metrics`, one request a connection.
//!
//! ```text
//!   accept ─► Reading ── whole head ──► Writing ── all is sent ──► Draining ─► closed
//!               │ at most 8 KiB           │ head, and the text      │ what the client still
//!               │                         │ that all clients share  │ sends, at most 64 KiB
//!               └───────── 5 s after accept, wherever it is: closed ┘
//! ```
//!
//! One thread polls all clients, so none waits for another. A client is hostile: it sends nothing,
//! a byte a second, megabytes, or reads nothing. Each costs at most one head, a reference to a text
//! and one descriptor, for 5 s. There are at most 16; one more closes the oldest.
//! So these clients hold at most 128 KiB, and 17 texts.
//!
//! HTTP/0.9, HTTP/2 and anything else that is no HTTP/1 gets status 400. A body is not read.

use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::text::CONTENT_TYPE;
use crate::stop::Stop;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// Time until the next attempt to accept a client after one that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How much clients may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Most clients at a time.
    pub(crate) clients: usize,
    /// Longest head of a request in bytes.
    pub(crate) head: usize,
    /// Most bytes that are read and dropped after a response.
    pub(crate) drained: usize,
    /// Longest time from accept to close.
    pub(crate) time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            clients: 16,
            head: 8 << 10,
            drained: 64 << 10,
            time: Duration::from_secs(5),
        }
    }
}

/// Where clients connect.
#[derive(Debug)]
pub(crate) enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// An address.
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream))
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream))
            }
        }
    }

    /// Makes `accept` return an error when no client waits: one that poll has seen may be gone.
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Unix(listener) => listener.set_nonblocking(true),
            Listener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

trait Stream: Read + Write + AsFd + Debug {
    fn end_output(&self) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn end_output(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for TcpStream {
    fn end_output(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

#[derive(Debug)]
enum State {
    Reading(Vec<u8>),
    Writing(Response, usize),
    /// So many bytes more may come. A close with unread input would reset the connection, and the
    /// client might lose the response.
    Draining(usize),
}

#[derive(Debug)]
struct Client {
    stream: Box<dyn Stream>,
    deadline: Instant,
    state: State,
}

impl Client {
    fn awaited(&self) -> PollFlags {
        match self.state {
            State::Writing(..) => PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Goes on as far as it can without waiting. Returns false when the client is done.
    fn advance(&mut self, bounds: &Bounds, text: &mut dyn FnMut() -> Option<Arc<[u8]>>) -> bool {
        loop {
            let step = match &mut self.state {
                State::Reading(head) => read(&mut *self.stream, head, bounds.head),
                State::Writing(response, sent) => response.send(&mut *self.stream, sent),
                State::Draining(left) => drain(&mut *self.stream, left),
            };
            match step {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            match &self.state {
                State::Reading(head) => {
                    if let Some(answer) = answer(head, bounds.head) {
                        self.state = State::Writing(Response::new(answer, text), 0);
                    }
                }
                State::Writing(response, sent) if *sent == response.len() => {
                    if self.stream.end_output().is_err() {
                        return false;
                    }
                    self.state = State::Draining(bounds.drained);
                }
                _ => {}
            }
        }
    }
}

/// Returns false at the end of the input.
fn read(stream: &mut dyn Stream, head: &mut Vec<u8>, most: usize) -> io::Result<bool> {
    let mut bytes = [0; 1024];
    let room = bytes.len().min(most - head.len());
    let count = stream.read(&mut bytes[..room])?;
    head.extend_from_slice(&bytes[..count]);
    Ok(count > 0)
}

/// Returns false at the end of the input, or if that was all that may come.
fn drain(stream: &mut dyn Stream, left: &mut usize) -> io::Result<bool> {
    let count = stream.read(&mut [0; 4096])?;
    *left = left.saturating_sub(count);
    Ok(count > 0 && *left > 0)
}

/// What a request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Metrics { body: bool },
    Refusal(&'static str),
}

/// The answer to a request whose head begins with `bytes`; `None` if more must come.
fn answer(bytes: &[u8], most: usize) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < most => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Answer::Refusal("431 Request Header Fields Too Large"));
        }
        Err(_) => return Some(Answer::Refusal("400 Bad Request")),
    }
    let path = request.path.unwrap_or("").split('?').next();
    Some(match (request.method, path) {
        (Some("GET"), Some("/metrics")) => Answer::Metrics { body: true },
        (Some("HEAD"), Some("/metrics")) => Answer::Metrics { body: false },
        (Some("GET" | "HEAD"), _) => Answer::Refusal("404 Not Found"),
        _ => Answer::Refusal("405 Method Not Allowed"),
    })
}

#[derive(Debug)]
struct Response {
    head: Vec<u8>,
    body: Arc<[u8]>,
}

impl Response {
    fn new(answer: Answer, text: &mut dyn FnMut() -> Option<Arc<[u8]>>) -> Self {
        match answer {
            Answer::Metrics { body } => match text() {
                Some(text) => Response {
                    head: head("200 OK", CONTENT_TYPE, text.len()),
                    body: if body { text } else { Arc::new([]) },
                },
                None => Self::refusal("503 Service Unavailable"),
            },
            Answer::Refusal(status) => Self::refusal(status),
        }
    }

    fn refusal(status: &str) -> Self {
        let text = format!("{status}; the metrics are at /metrics\n");
        Response {
            head: head(status, "text/plain; charset=utf-8", text.len()),
            body: text.into_bytes().into(),
        }
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Sends what comes after the first `sent` bytes. Returns false if the client takes no more.
    fn send(&self, stream: &mut dyn Stream, sent: &mut usize) -> io::Result<bool> {
        let rest = match sent.checked_sub(self.head.len()) {
            None => &self.head[*sent..],
            Some(sent) => &self.body[sent..],
        };
        let count = stream.write(rest)?;
        *sent += count;
        Ok(count > 0)
    }
}

fn head(status: &str, kind: &str, length: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Allow: GET, HEAD\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

/// Serves clients of all listeners until `stop` is raised. `text` gives the metrics, or `None` if
/// there are none any more.
pub(crate) fn serve(
    listeners: &[Listener],
    bounds: &Bounds,
    text: &mut dyn FnMut() -> Option<Arc<[u8]>>,
    stop: &Stop,
) {
    if let Err(error) = serve_until(listeners, bounds, text, stop) {
        tracing::warn!("the metrics endpoint ends: {error}");
    }
}

fn serve_until(
    listeners: &[Listener],
    bounds: &Bounds,
    text: &mut dyn FnMut() -> Option<Arc<[u8]>>,
    stop: &Stop,
) -> io::Result<()> {
    for listener in listeners {
        listener.set_nonblocking()?;
    }
    // The oldest is the first, and has the first deadline.
    let mut clients: Vec<Client> = Vec::new();
    let mut paused_until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        paused_until = paused_until.filter(|until| now < *until);
        let until = clients.iter().map(|client| client.deadline);
        let until = until.chain(paused_until).min();
        let accepting = if paused_until.is_some() {
            0
        } else {
            listeners.len()
        };
        let ready = wait(&listeners[..accepting], &clients, until, stop)?;
        let Some(ready) = ready else {
            return Ok(());
        };
        let (new, old) = ready.split_at(accepting);
        let now = Instant::now();
        let mut old = old.iter();
        clients.retain_mut(|client| {
            let is_ready = old.next() == Some(&true);
            now < client.deadline && (!is_ready || client.advance(bounds, text))
        });
        for (listener, _) in listeners.iter().zip(new).filter(|(_, new)| **new) {
            match listener.accept() {
                Ok(stream) => {
                    if clients.len() == bounds.clients {
                        clients.remove(0);
                    }
                    clients.push(Client {
                        stream,
                        deadline: now + bounds.time,
                        state: State::Reading(Vec::new()),
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::debug!("cannot accept a client of the metrics endpoint: {error}");
                    paused_until = Some(now + RETRY_INTERVAL);
                }
            }
        }
    }
}

/// Waits until a listener or a client can go on, or until `until`. Returns whether each can, or
/// `None` if the thread must end.
fn wait(
    listeners: &[Listener],
    clients: &[Client],
    until: Option<Instant>,
    stop: &Stop,
) -> io::Result<Option<Vec<bool>>> {
    let listeners = listeners
        .iter()
        .map(|listener| (listener.as_fd(), PollFlags::IN));
    let clients = clients
        .iter()
        .map(|client| (client.stream.as_fd(), client.awaited()));
    let mut fds: Vec<_> = std::iter::once((stop.descriptor(), PollFlags::IN))
        .chain(listeners)
        .chain(clients)
        .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags))
        .collect();
    let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = timeout.map(Timespec::try_from).transpose();
    let timeout = timeout.map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => return Ok(Some(vec![false; fds.len() - 1])),
        polled => polled?,
    };
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    let stopped = ready.next() == Some(true);
    Ok((!stopped).then(|| ready.collect()))
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
