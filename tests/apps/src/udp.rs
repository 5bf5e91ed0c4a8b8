//! Datagrams of UDP between two guests, also by fragments of IP, on links that lose some.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_apps::demo::node::say;

const PORT: u16 = 5001;

/// Lengths of datagrams: of one frame, and of several.
const LENGTHS: [usize; 4] = [0, 100, 1_400, 9_000];

/// How long an answer is waited for before the question is asked again, and how often it is.
const ANSWER_TIME: Duration = Duration::from_millis(200);
const TRIES: u32 = 100;

/// Options of the program that asks.
#[derive(Args)]
pub(crate) struct Options {
    /// Name or address of the node on which `udp-echo` runs
    peer: String,
    /// How many datagrams of each length
    #[arg(long, default_value = "50")]
    count: u32,
}

/// Sends each datagram back, until it is killed.
pub(crate) fn echo() -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("bind")?;
    say("serving", PORT)?;
    let mut bytes = vec![0; 65_536];
    loop {
        let (length, from) = socket.recv_from(&mut bytes).context("receive")?;
        socket.send_to(&bytes[..length], from).context("answer")?;
    }
}

/// Has each datagram come back, and compares. Lost ones are sent again, and counted.
pub(crate) fn exchange(options: &Options) -> Result<()> {
    let addresses = (options.peer.as_str(), PORT).to_socket_addrs();
    let address = addresses
        .context("find the peer")?
        .find(SocketAddr::is_ipv4);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("bind")?;
    socket.connect(address.context("the peer has no address")?)?;
    socket.set_read_timeout(Some(ANSWER_TIME))?;
    let mut lost = 0;
    for number in 0..options.count {
        for length in LENGTHS {
            let data = (0..length).map(|at| (at as u32 ^ number) as u8);
            let question: Vec<u8> = number.to_le_bytes().into_iter().chain(data).collect();
            lost += until_answered(&socket, &question)?;
        }
    }
    say("lost", lost)
}

/// Asks until the answer is there. Returns how often it was not.
fn until_answered(socket: &UdpSocket, question: &[u8]) -> Result<u32> {
    let mut answer = vec![0; 65_536];
    for lost in 0..TRIES {
        socket.send(question).context("send")?;
        loop {
            match socket.recv(&mut answer) {
                Ok(length) if answer[..length] == *question => return Ok(lost),
                // Of one that was thought to be lost; anything else was changed on its way.
                Ok(length) => {
                    let number =
                        |bytes: &[u8]| bytes.first_chunk().map(|it| u32::from_le_bytes(*it));
                    let is_late = number(&answer[..length]) <= number(question);
                    ensure!(is_late, "an answer of {length} bytes to nothing");
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    break
                }
                Err(error) => return Err(error).context("receive"),
            }
        }
    }
    anyhow::bail!("no answer to {} bytes, asked {TRIES} times", question.len())
}
