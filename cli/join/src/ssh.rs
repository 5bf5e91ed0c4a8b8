//! `qnic ssh`: the secure shell of this machine, at a forwarded port.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, Result};
use qnic_cli::join::ssh::Options;

use crate::forward::{serve, Port};

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cluster = options.cluster.find(None)?;
    let port = Port::listen(options.port, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let here = port.address()?.port();
    let ethernet = cluster.join_ethernet(&options.node)?;
    let node = options.node.clone();
    thread::spawn(move || {
        if let Err(error) = serve(&node, ethernet, &[port]) {
            eprintln!("qnic: {error:#}");
        }
    });
    let mut ssh = Command::new("ssh");
    // The guest's key may change with each boot, and the way to it leaves this machine nowhere.
    ssh.args([
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    ])
    .args(["-o", "LogLevel=ERROR", "-p", &here.to_string()]);
    if let Some(key) = cluster.ssh_key() {
        // Without the others, which the server would count as failures before it sees this one.
        ssh.args(["-o", "IdentitiesOnly=yes", "-i"]).arg(key);
    }
    ssh.arg(format!("{}@127.0.0.1", options.user))
        .args(&options.arguments);
    let status = ssh
        .status()
        .context("start ssh: install OpenSSH's client, such as the package openssh-client")?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1)))
}
