//! IP between guests over their Ethernet ports (X17).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{anyhow, bail, ensure, Context, Result};
use qnic_cluster::{ByteSize, Links, NetworkSpec, NodeSpec, OnOff};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::json;

use super::nodes::{on_spec, BOTH_KERNELS};
use super::shell::{no_kernel_complains, number};
use crate::harness::{cases, Case, Skip};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{Nodes, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    guests_of_both_kernels_talk_over_ip: 0 => {
        let mut spec = VmNodes::spec("ethernet", BOTH_KERNELS)?;
        spec.network = Some(NetworkSpec::default());
        spec.ethernet = OnOff::on();
        // A guest with a port and nothing else.
        spec.nodes.push(NodeSpec {
            nic: false,
            memory: ByteSize::mib(128),
            outside: true,
            ..NodeSpec::new("n2")
        });
        on_spec(&spec, talk)
    },
    this_machine_has_an_interface_on_the_ethernet => {
        ensure_namespaces()?;
        let mut spec = VmNodes::spec("tap", &["stable"])?;
        spec.ethernet = OnOff::on();
        spec.nodes[0].nic = false;
        spec.nodes[0].memory = ByteSize::mib(128);
        on_spec(&spec, |nodes| interface((nodes, 0, "n0")))
    },
};

/// Bytes of a stream on good links, and on bad ones.
const LONG: u64 = 16 << 20;
const SHORT: u64 = 2 << 20;

/// A guest: its cluster, its place there, and its name.
pub(super) type Guest<'a> = (&'a VmNodes, usize, &'a str);

/// Two guests reach each other, by packets of which several carry one, and by a stream.
pub(super) fn reach(a: Guest<'_>, b: Guest<'_>) -> Result<()> {
    for (from, to) in [(a, b), (b, a)] {
        ping(from, to, "-c 3 -W 60 -s 20000")?;
    }
    stream(a, b, SHORT)
}

fn talk(nodes: &VmNodes) -> Result<()> {
    let (a, b) = ((nodes, 0, "n0"), (nodes, 1, "n1"));
    let ping = |options: &str| {
        ping(a, b, options)?;
        ping(b, a, options)
    };
    ping("-c 20 -i 0.01 -W 60")?;
    // Several fragments of IP; a name.
    ping("-c 3 -W 60 -s 20000")?;
    stream(a, b, LONG)?;
    datagrams(a, b)?;
    links(
        nodes,
        &json!({"loss": "5%", "delay": "1ms", "reorder": "5%"}),
    )?;
    stream(a, b, SHORT)?;
    ensure!(
        datagrams(a, b)? > 0,
        "links that lose 5 % have lost nothing"
    );
    links(nodes, &json!({"partition": true}))?;
    let cut = shell(nodes, 0, "ping -c 2 -i 0.2 -W 1 n1 > /dev/null; echo $?")?;
    ensure!(cut.trim() == "1", "a ping through a partition: {cut}");
    nodes.cluster().set_links(&Links::All, None)?;
    ping("-c 3 -W 60")?;
    // A pause stops the queues of the port, and they go on where they were.
    nodes.cluster().pause("n1")?;
    nodes.cluster().resume("n1")?;
    ping("-c 3 -W 60")?;
    // The port needs neither driver nor NIC.
    shell(nodes, 1, "rmmod qnic && ! [ -e /dev/qnic0 ]")?;
    ping("-c 3 -W 60")?;
    stream(a, b, SHORT)?;
    shell(nodes, 1, "modprobe qnic")?;
    shell(
        nodes,
        2,
        "! [ -e /lib/modules/$(uname -r)/extra/qnic.ko ] && ! [ -e /dev/qnic0 ]",
    )?;
    let c = (nodes, 2, "n2");
    reach(a, c)?;
    reach(c, b)?;
    address(c, "10.71.0.3/255.255.0.0/n2")?;
    links(nodes, &json!({"partition": true}))?;
    forwarded(c)?;
    outside(c)?;
    no_kernel_complains(nodes)?;
    forwarded_until_the_device_process_ends(c)
}

/// Datagrams of UDP go to a guest and come back as they were. Returns how many were lost.
fn datagrams((nodes, node, _): Guest<'_>, (others, other, peer): Guest<'_>) -> Result<u64> {
    let mut echo = others.start_until(other, "udp-echo", "serving")?;
    let mut exchange = nodes.start(node, &format!("udp-exchange {peer}"))?;
    let lost = exchange.expect("lost", LIMIT)?;
    exchange.succeed("datagrams", LIMIT)?;
    echo.kill()?;
    echo.wait(LIMIT)?;
    println!("    200 datagrams of UDP there and back, {lost} lost");
    lost.as_u64().context("no number of lost datagrams")
}

/// A guest that asks by DHCP gets the address that it has: address, mask and name.
fn address((nodes, node, _): Guest<'_>, expected: &str) -> Result<()> {
    let ask = "printf '#!/bin/sh\n[ $1 = bound ] && echo $ip/$subnet/$hostname > /tmp/lease\n' > /tmp/ask; \
               chmod +x /tmp/ask; \
               busybox udhcpc -i eth0 -n -q -f -s /tmp/ask > /dev/null 2>&1; cat /tmp/lease";
    let lease = shell(nodes, node, ask)?;
    ensure!(lease.trim() == expected, "the guest was given {lease:?}");
    Ok(())
}

/// A guest reaches a server of this machine, if its cluster file says that it may.
fn outside((nodes, node, _): Guest<'_>) -> Result<()> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        server.accept()?.0.read_to_string(&mut said)?;
        std::io::Result::Ok(said)
    });
    shell(nodes, node, &format!("echo hello | nc 10.0.2.2 {port}"))?;
    let said = said
        .join()
        .map_err(|_| anyhow!("the server has failed"))??;
    ensure!(said == "hello\n", "the guest said {said:?}");
    let others = shell(nodes, 0, "ip route get 10.0.2.2 2>&1; true")?;
    ensure!(others.contains("unreachable"), "n0 has a route: {others}");
    Ok(())
}

/// A program of this machine reaches a server of a guest, whatever the links do, until the command is
/// interrupted; a device process that stands still meanwhile delays it.
fn forwarded(guest: Guest<'_>) -> Result<()> {
    let device = device_process(guest.0)?;
    let forward = Forward::start(guest)?;
    let sent: Vec<u8> = (0..LONG / 4).map(|at| (at >> 10) as u8).collect();
    forward.echoes(&sent, || Ok(()))?;
    forward.echoes(&sent[..1 << 16], || {
        kill_process(device, Signal::STOP)?;
        let quiet = TcpStream::connect(&forward.address)?;
        quiet.set_read_timeout(Some(Duration::from_millis(500)))?;
        (&quiet).write_all(b"?")?;
        let said = (&quiet).read(&mut [0]);
        kill_process(device, Signal::CONT)?;
        ensure!(
            said.is_err(),
            "a process that stands still answers: {said:?}"
        );
        Ok(())
    })?;
    let (status, said) = forward.end(Signal::INT)?;
    ensure!(status.success(), "qnic forward ended with {status}: {said}");
    println!(
        "    {} bytes there and back through a forwarded port",
        sent.len()
    );
    Ok(())
}

/// The command that forwards ends with its device process, and says why.
fn forwarded_until_the_device_process_ends(guest: Guest<'_>) -> Result<()> {
    let device = device_process(guest.0)?;
    let forward = Forward::start(guest)?;
    let client = TcpStream::connect(&forward.address)?;
    (&client).write_all(b"!")?;
    (&client).read_exact(&mut [0])?;
    kill_process(device, Signal::KILL)?;
    let (status, said) = forward.ended()?;
    ensure!(
        status.code() == Some(1) && said.contains("the device process has ended"),
        "qnic forward ended with {status}: {said}"
    );
    Ok(())
}

/// Fails with [`Skip`] where a user may make no network namespaces.
fn ensure_namespaces() -> Result<()> {
    let made = Command::new("unshare").args(["-rn", "true"]).output();
    let made = made.is_ok_and(|output| output.status.success());
    ensure!(made, Skip("no network namespaces for users here"));
    Ok(())
}

/// A shell in a namespace has an interface there; it connects to a guest, and the guest pings it.
fn interface((nodes, node, name): Guest<'_>) -> Result<()> {
    serve_echo(nodes, node)?;
    let tool = std::env::current_exe()?;
    let cluster = nodes.cluster().name();
    // The tool says that it is there; the shell then waits until it is told to end.
    let script = "\"$0\" tap --cluster \"$1\" \"$2\" --name lab0 & tap=$!; read -r go; \
                  exec 3<>/dev/tcp/10.71.0.1/8080; echo hello >&3; read -r back <&3; echo \"$back\"; \
                  exec 3>&-; read -r end; kill -INT $tap; wait $tap; echo \"ended with $?\"; \
                  [ -e /sys/class/net/lab0 ] && echo left; true";
    let mut shell_here = Command::new("unshare")
        .args(["-rn", "bash", "-c", script])
        .arg(tool)
        .args([cluster, name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start a shell in a network namespace")?;
    let mut says = BufReader::new(shell_here.stdout.take().context("no output")?).lines();
    let mut said = || {
        says.next()
            .context("it has ended")?
            .context("read what it says")
    };
    let mut input = shell_here.stdin.take().context("no input")?;
    let there = said()?;
    ensure!(there.starts_with("lab0 has 10.71.255.254/16"), "{there}");
    writeln!(input, "go")?;
    ensure!(said()? == "hello", "not what was sent");
    shell(nodes, node, "ping -c 3 -W 60 10.71.255.254").context("the guest pings this machine")?;
    writeln!(input, "end")?;
    let ended = said()?;
    ensure!(ended == "ended with 0", "{ended}");
    ensure!(says.next().is_none(), "the interface is left");
    ensure!(shell_here.wait()?.success(), "the shell has failed");
    Ok(())
}

fn device_process(nodes: &VmNodes) -> Result<Pid> {
    let device = nodes.cluster().device().context("no device process")?;
    Pid::from_raw(device.pid).context("a device process without a number")
}

/// A server of a guest returns what it gets, at port 8080.
fn serve_echo(nodes: &VmNodes, node: usize) -> Result<()> {
    let serve = "netstat -ltn | grep -q ':8080 ' || busybox nc -ll -p 8080 -e cat & \
                 until netstat -ltn | grep -q ':8080 '; do :; done";
    shell(nodes, node, serve).map(drop)
}

/// `qnic forward` to a server of a guest that returns what it gets.
struct Forward {
    command: Child,
    address: String,
}

impl Forward {
    fn start((nodes, node, name): Guest<'_>) -> Result<Self> {
        serve_echo(nodes, node)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["forward", "--cluster", nodes.cluster().name()]);
        command.arg(format!("{name}:8080"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().context("start qnic forward")?;
        let mut line = String::new();
        let said = command.stdout.take().context("it has no output")?;
        BufReader::new(said).read_line(&mut line)?;
        let address = line.split(' ').next().unwrap_or_default().to_owned();
        Ok(Forward { command, address })
    }

    /// Sends bytes, of which the second half follows `meanwhile`, and has them back.
    fn echoes(&self, sent: &[u8], meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        let client = TcpStream::connect(&self.address);
        let client = client.with_context(|| format!("connect to {:?}", self.address))?;
        let (first, second) = sent.split_at(sent.len() / 2);
        let received = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let mut received = Vec::new();
                (&client).read_to_end(&mut received).map(|_| received)
            });
            let sending = || {
                (&client).write_all(first)?;
                meanwhile()?;
                (&client).write_all(second)?;
                anyhow::Ok(client.shutdown(Shutdown::Write)?)
            };
            // The receiver waits for the end of the connection.
            sending().inspect_err(|_| drop(client.shutdown(Shutdown::Both)))?;
            let received = receiving.join();
            anyhow::Ok(received.map_err(|_| anyhow!("the receiver has failed"))??)
        })?;
        ensure!(received == sent, "{} bytes came back", received.len());
        Ok(())
    }

    fn end(self, signal: Signal) -> Result<(ExitStatus, String)> {
        kill_process(Pid::from_child(&self.command), signal)?;
        self.ended()
    }

    /// Its status, and what it complained of.
    fn ended(self) -> Result<(ExitStatus, String)> {
        let output = self.command.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status, said))
    }
}

fn links(nodes: &VmNodes, faults: &serde_json::Value) -> Result<()> {
    let faults = serde_json::from_value(faults.clone())?;
    nodes.cluster().set_links(&Links::All, Some(&faults))?;
    Ok(())
}

/// A guest reaches another one by its name, and no answer is lost.
pub(super) fn ping(
    (nodes, node, name): Guest<'_>,
    (others, other, peer): Guest<'_>,
    options: &str,
) -> Result<()> {
    let said = shell(nodes, node, &format!("ping {options} {peer}"))?;
    if !said.contains(" 0% packet loss") {
        // Where it was lost, as far as the kernels know.
        let counts = "grep -e ^Ip: -e ^Icmp: /proc/net/snmp; cat /proc/net/dev";
        let (here, there) = (shell(nodes, node, counts), shell(others, other, counts));
        bail!("{name}: {said}\n{name}: {here:?}\n{peer}: {there:?}");
    }
    let times = said.lines().last().unwrap_or_default();
    println!("    ping {options}, from {name} to {peer}: {times}");
    Ok(())
}

/// A guest sends bytes to another one over TCP, and all of them arrive as they were.
fn stream(from: Guest<'_>, to: Guest<'_>, bytes: u64) -> Result<()> {
    let ((nodes, node, _), (others, other, peer)) = (from, to);
    // Its input stays open: it ends the connection when that ends.
    let listen = "rm -f /tmp/received; (tail -f /dev/null | nc -l -p 5000 > /tmp/received) & \
                  until netstat -ltn | grep -q ':5000 '; do :; done";
    shell(others, other, listen)?;
    let send = format!(
        "head -c {bytes} /dev/urandom > /tmp/sent; \
         before=$(cut -d ' ' -f 1 /proc/uptime); \
         nc {peer} 5000 < /tmp/sent; \
         after=$(cut -d ' ' -f 1 /proc/uptime); \
         echo $before $after | awk '{{ printf \"%d\\n\", ($2 - $1) * 1000 }}'"
    );
    let milliseconds = number(nodes, node, &send)?;
    // The listener may still have to write what it has received; then it is not needed any more.
    let received = format!(
        "until [ $(stat -c %s /tmp/received) = {bytes} ]; do pidof nc > /dev/null || break; done; \
         kill $(pidof nc tail); sha256sum < /tmp/received"
    );
    let (sent, received) = (
        shell(nodes, node, "sha256sum < /tmp/sent; rm /tmp/sent")?,
        shell(others, other, &received)?,
    );
    ensure!(sent == received, "{bytes} bytes were changed on the way");
    println!("    {bytes} bytes over TCP in {milliseconds} ms");
    Ok(())
}
