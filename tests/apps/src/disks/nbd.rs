//! A server of nbd whose blocks are in its memory: what remote memory is compared with. It does
//! what the kernel's client asks for, one request after the other, and copies each block once.
//!
//! ```text
//!   client                        server
//!     ◄─ NBDMAGIC IHAVEOPT, flags
//!   flags, IHAVEOPT, EXPORT_NAME ─►
//!     ◄─ size, flags, zeroes                   then, again and again:
//!   request: what, handle, offset, length[, data] ─►
//!     ◄─ reply: error, handle[, data]
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic_config::ByteSize;

use qnic_apps::demo::node::say;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Handshake flag: fixed newstyle.
const FIXED: u16 = 1;
/// Handshake flags: no zeroes behind size and flags.
const NO_ZEROES: u32 = 2;
const EXPORT_NAME: u32 = 1;
/// Transmission flags: they are valid.
const HAS_FLAGS: u16 = 1;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
/// The errno of a request that is none.
const EINVAL: u32 = 22;

/// Longest name of an option, and longest request: the kernel's are shorter.
const MAX_LENGTH: usize = 1 << 20;

#[derive(Args)]
pub(crate) struct Options {
    /// TCP port
    #[arg(long, default_value_t = 10_809)]
    port: u16,
    /// Size of the device
    #[arg(long)]
    size: ByteSize,
}

/// Serves one client after the other, until it is killed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut blocks = vec![0; usize::try_from(options.size.0)?];
    let listener = TcpListener::bind(("0.0.0.0", options.port)).context("listen")?;
    say("serving", options.port)?;
    for stream in listener.incoming() {
        serve(stream?, &mut blocks).context("a client")?;
    }
    Ok(())
}

fn serve(mut stream: TcpStream, blocks: &mut [u8]) -> Result<()> {
    stream.set_nodelay(true)?;
    negotiate(&mut stream, blocks.len() as u64)?;
    let mut data = vec![0; 16 + MAX_LENGTH];
    loop {
        let mut head = [0; 28];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        ensure!(
            word(0) == REQUEST,
            "the client sends no request of nbd: its magic is {:#x}",
            word(0)
        );
        let (what, length) = (word(4) as u16, word(24) as usize);
        let offset = u64::from(word(16)) << 32 | u64::from(word(20));
        ensure!(
            length <= MAX_LENGTH,
            "a request of {length} bytes: at most {MAX_LENGTH}"
        );
        if what == WRITE {
            stream.read_exact(&mut data[16..16 + length])?;
        }
        let place = usize::try_from(offset).ok();
        let place = place.and_then(|from| blocks.get_mut(from..from.checked_add(length)?));
        let (error, answer) = match (what, place) {
            (DISCONNECT, _) => return Ok(()),
            (READ, Some(place)) => {
                data[16..16 + length].copy_from_slice(place);
                (0, length)
            }
            (WRITE, Some(place)) => {
                place.copy_from_slice(&data[16..16 + length]);
                (0, 0)
            }
            _ => (EINVAL, 0),
        };
        data[..4].copy_from_slice(&REPLY.to_be_bytes());
        data[4..8].copy_from_slice(&u32::to_be_bytes(error));
        data[8..16].copy_from_slice(&head[8..16]);
        stream.write_all(&data[..16 + answer])?;
    }
}

/// Agrees on the one device that there is.
fn negotiate(stream: &mut (impl Read + Write), size: u64) -> Result<()> {
    let hello = [
        &NBDMAGIC.to_be_bytes()[..],
        &IHAVEOPT.to_be_bytes(),
        &FIXED.to_be_bytes(),
    ];
    stream.write_all(&hello.concat())?;
    let mut option = [0; 20];
    stream.read_exact(&mut option)?;
    let word = |at: usize| {
        u32::from_be_bytes([option[at], option[at + 1], option[at + 2], option[at + 3]])
    };
    let magic = u64::from(word(4)) << 32 | u64::from(word(8));
    if magic != IHAVEOPT || word(12) != EXPORT_NAME {
        bail!("an option that is not known: {option:x?}");
    }
    let length = word(16) as usize;
    ensure!(
        length <= MAX_LENGTH,
        "a name of {length} bytes: at most {MAX_LENGTH}"
    );
    stream.read_exact(&mut vec![0; length])?;
    let mut answer = [&size.to_be_bytes()[..], &HAS_FLAGS.to_be_bytes()].concat();
    if word(0) & NO_ZEROES == 0 {
        answer.resize(answer.len() + 124, 0);
    }
    Ok(stream.write_all(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(what: u16, offset: u64, length: u32) -> Vec<u8> {
        let parts = [
            &REQUEST.to_be_bytes()[..],
            &u32::from(what).to_be_bytes(),
            b"a handle",
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ];
        parts.concat()
    }

    #[test]
    fn what_was_written_is_read_and_what_is_outside_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, &mut [0; 8192])
        });
        let mut hello = [0; 18];
        client.read_exact(&mut hello).unwrap();
        let option = [
            &0_u32.to_be_bytes()[..],
            &IHAVEOPT.to_be_bytes(),
            &[0, 0, 0, 1, 0, 0, 0, 1],
            b"x",
        ];
        client.write_all(&option.concat()).unwrap();
        let mut answer = [0; 134];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], 8192_u64.to_be_bytes());
        let mut call = |what, offset, length, data: &[u8], expected: u32, answer: &mut [u8]| {
            client.write_all(&request(what, offset, length)).unwrap();
            client.write_all(data).unwrap();
            let mut reply = [0; 16];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(
                (&reply[4..8], &reply[8..]),
                (&expected.to_be_bytes()[..], &b"a handle"[..])
            );
            client.read_exact(answer).unwrap();
        };
        call(WRITE, 4096, 3, b"abc", 0, &mut []);
        let mut read = [0; 4];
        call(READ, 4095, 4, &[], 0, &mut read);
        assert_eq!(&read, b"\0abc");
        call(READ, 8190, 3, &[], EINVAL, &mut []);
        call(READ, u64::MAX, 3, &[], EINVAL, &mut []);
        drop(client);
        server.join().unwrap().unwrap();
    }
}
