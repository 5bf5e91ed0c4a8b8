//! The helper in the guest: `qnic-exec serve PORT NONCE`, `pack PATH`, `unpack DEST`. Port `-` is
//! standard input, a socket. `agent PORT` starts such helpers when the host says so, in guests without
//! an agent of ours.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use qnic_exec::{agent, archive, guest};

const USAGE: &str = "usage: qnic-exec serve PORT NONCE | agent PORT | pack PATH | unpack DEST";

fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("qnic-exec: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Vec<OsString>) -> io::Result<()> {
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, USAGE);
    let verb = args.first().and_then(|verb| verb.to_str());
    match (verb, &args[..]) {
        (Some("serve"), [_, port, nonce]) => {
            let port = port.to_str().ok_or_else(usage)?;
            let nonce = nonce
                .to_str()
                .and_then(|nonce| nonce.parse().ok())
                .ok_or_else(usage)?;
            let port = match port {
                "-" => io::stdin().as_fd().try_clone_to_owned()?,
                name => guest::open_port(name)?,
            };
            guest::serve(port, nonce)
        }
        (Some("agent"), [_, port]) => {
            let port = port.to_str().ok_or_else(usage)?;
            agent::serve(guest::open_port(port)?)
        }
        (Some("pack"), [_, path]) => archive::pack(&PathBuf::from(path), io::stdout().lock()),
        (Some("unpack"), [_, dest]) => {
            archive::unpack(io::stdin().lock(), &PathBuf::from(dest)).map(drop)
        }
        _ => Err(usage()),
    }
}
