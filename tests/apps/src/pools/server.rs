//! The side that answers.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use anyhow::{Context, Result};
use clap::Args;
use qnic::datagram::Socket;
use qnic::stream::{Options, Streams};
use qnic::Nic;
use serde_json::json;

use super::connection::{Answer, Connection, Pooled, Purpose, Tcp, CHUNK};
use super::{SOCKET_PORT, STREAM_PORT};
use qnic_apps::demo::node::say;

#[derive(Args)]
pub(crate) struct ServerOptions {
    /// Serves TCP and UDP, too
    #[arg(long)]
    internet: bool,
}

/// Serves until it is killed. Says how each stream over pools has ended.
pub(crate) fn serve(options: &ServerOptions) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let streams = Streams::open(&nic, STREAM_PORT, Options::default());
    let streams = streams.context("open pools for streams")?;
    let socket = Socket::bind(&nic, SOCKET_PORT).context("bind a socket")?;
    let listener = streams.listen()?;
    spawn("socket", move || echo_datagrams(&socket));
    if options.internet {
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, STREAM_PORT)).context("TCP")?;
        let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SOCKET_PORT)).context("UDP")?;
        spawn("TCP", move || serve_tcp(&tcp));
        spawn("UDP", move || echo_udp(&udp));
    }
    say("serving", std::process::id())?;
    loop {
        let stream = listener.accept(None).context("accept a stream")?;
        let streams = streams.clone();
        std::thread::spawn(move || {
            let said = match serve_one(&mut Pooled { stream, streams }) {
                Ok(answer) => say("ended", json!({"bytes": answer.bytes})),
                Err(error) => say("failed", format!("{error:#}")),
            };
            end_with("say how a stream has ended", said);
        });
    }
}

/// Runs a part of the server in a thread; if it ends, the server does.
fn spawn(what: &'static str, run: impl FnOnce() -> Result<()> + Send + 'static) {
    std::thread::spawn(move || end_with(what, run()));
}

fn end_with(what: &str, outcome: Result<()>) {
    if let Err(error) = outcome {
        eprintln!("{what}: {error:#}");
        std::process::exit(1);
    }
}

/// Does what a connection is for, until its other side has ended.
fn serve_one(connection: &mut impl Connection) -> Result<Answer> {
    let purpose = Purpose::read(connection)?;
    let before = connection.calls();
    let mut checksum = crc32fast::Hasher::new();
    let (mut chunk, mut bytes) = (vec![0; CHUNK], 0);
    loop {
        let count = connection.read(&mut chunk).context("read")?;
        let read = &chunk[..count];
        match purpose {
            _ if count == 0 => break,
            Purpose::Echo => connection.write_all(read).context("send back")?,
            Purpose::Drop => {}
            Purpose::Check => checksum.update(read),
        }
        bytes += count as u64;
    }
    let answer = Answer {
        bytes,
        checksum: checksum.finalize(),
        calls: connection.calls() - before,
    };
    if purpose != Purpose::Echo {
        answer.write(connection)?;
    }
    connection.finish()?;
    Ok(answer)
}

fn echo_datagrams(socket: &Socket) -> Result<()> {
    loop {
        let message = socket.receive(None)?;
        socket.send_to(&message.bytes, message.node, message.port, None)?;
    }
}

/// One connection after the other.
fn serve_tcp(listener: &TcpListener) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().context("accept")?;
        serve_one(&mut Tcp::new(stream)?)?;
    }
}

fn echo_udp(socket: &UdpSocket) -> Result<()> {
    let mut bytes = vec![0; CHUNK];
    loop {
        let (count, peer) = socket.recv_from(&mut bytes)?;
        socket.send_to(&bytes[..count], peer)?;
    }
}
