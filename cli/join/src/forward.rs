//! `qnic forward`: TCP ports of guests at addresses of this machine.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::thread;

use anyhow::{anyhow, Context, Result};
use qnic_cli::join::forward::{pairs, Options};
use qnic_cluster::{Cancel, HostEthernet};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::relay::{End, Relay};
use crate::stack::Stack;

/// Connections to one node at once; others wait.
const MAX_CONNECTIONS: usize = 256;

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let pairs = pairs(&options.ends)
        .map_err(|here| anyhow!("{here} follows no NODE:PORT: write NODE:PORT in front of it"))?;
    let cancel = Cancel::on_signals()?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let mut by_node: BTreeMap<String, Vec<Port>> = BTreeMap::new();
    for (node, number, here) in pairs {
        let port = Port::listen(number, here)?;
        by_node.entry(node).or_default().push(port);
    }
    let joined = by_node.into_iter().map(|(node, ports)| {
        let ethernet = cluster.join_ethernet(&node)?;
        Ok((node, ethernet, ports))
    });
    let joined = joined.collect::<Result<Vec<_>>>()?;
    for (node, _, ports) in &joined {
        for port in ports {
            println!("{} is port {} of {node}", port.address()?, port.number);
        }
    }
    let nodes = joined
        .into_iter()
        .map(|(node, ethernet, ports)| move || serve(&node, ethernet, &ports));
    let (first_end, ended) = std::sync::mpsc::channel();
    let cancelled = first_end.clone();
    thread::spawn(move || {
        cancel.wait();
        drop(cancelled.send(Ok(())));
    });
    for node in nodes {
        let first_end = first_end.clone();
        // None is joined: they end with the program.
        thread::spawn(move || drop(first_end.send(node())));
    }
    ended.recv().context("a thread has failed")??;
    Ok(ExitCode::SUCCESS)
}

/// A forwarded port.
pub(crate) struct Port {
    number: u16,
    listener: TcpListener,
}

impl Port {
    /// Listens at `here` for port `number` of a node.
    pub(crate) fn listen(number: u16, here: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(here).with_context(|| format!("listen at {here}"))?;
        listener.set_nonblocking(true).context("listen")?;
        Ok(Port { number, listener })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Serves the ports of a node. Returns the error that ends it.
pub(crate) fn serve(node: &str, ethernet: HostEthernet, ports: &[Port]) -> Result<()> {
    let mut stack = Stack::new(ethernet)?;
    let mut relays: Vec<(u16, Relay)> = Vec::new();
    loop {
        stack.turn()?;
        relays.retain_mut(|(port, relay)| {
            let end = relay.turn(stack.socket(relay.guest));
            match end {
                Some(End::Refused) => eprintln!("qnic: no server answers at port {port} of {node}"),
                Some(End::Lost) => {
                    eprintln!("qnic: {node} has reset a connection to port {port}, or is silent")
                }
                _ => {}
            }
            end.is_none() || {
                // What is still to be sent, a reset say, goes out before the socket does.
                let _ = stack.turn();
                stack.remove(relay.guest);
                false
            }
        });
        // The sockets may have more to send now. If one changes by that, it is looked at again.
        if stack.turn()? {
            continue;
        }
        wait(&mut stack, &mut relays, ports)?;
        for port in ports {
            while relays.len() < MAX_CONNECTIONS {
                let Ok((client, _)) = port.listener.accept() else {
                    break;
                };
                let guest = stack.connect(port.number)?;
                relays.push((port.number, Relay::new(client, guest)?));
            }
        }
    }
}

/// Waits until something can be done.
fn wait(stack: &mut Stack, relays: &mut [(u16, Relay)], ports: &[Port]) -> Result<()> {
    let (events, delay) = stack.events();
    let waited_for = relays
        .iter()
        .map(|(_, relay)| relay.events(stack.socket(relay.guest)));
    let waited_for: Vec<_> = waited_for.collect();
    let stack: &Stack = stack;
    let mut all = vec![PollFd::new(stack, events)];
    for ((_, relay), events) in relays.iter().zip(&waited_for) {
        all.extend(events.map(|events| PollFd::new(&relay.client, events)));
    }
    if relays.len() < MAX_CONNECTIONS {
        all.extend(
            ports
                .iter()
                .map(|port| PollFd::new(&port.listener, PollFlags::IN)),
        );
    }
    let delay = delay.map(Timespec::try_from).transpose()?;
    match poll(&mut all, delay.as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
        polled => polled.context("wait")?,
    };
    let happened: Vec<_> = all[1..].iter().map(PollFd::revents).collect();
    let mut happened = happened.into_iter();
    for ((_, relay), events) in relays.iter_mut().zip(waited_for) {
        if events.is_some()
            && happened
                .next()
                .is_some_and(|it| it.contains(PollFlags::ERR))
        {
            relay.client_has_gone();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Shutdown, TcpStream};

    use super::*;
    use crate::stack::tests::with_guest;

    /// Two ports of one node: a server that returns what it gets, and none.
    fn forwarded() -> [SocketAddr; 2] {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let ports = [7, 8].map(|port| Port::listen(port, here).unwrap());
        let addresses = ports.each_ref().map(|port| port.address().unwrap());
        // It ends with the test.
        thread::spawn(move || serve("n0", with_guest(), &ports));
        addresses
    }

    #[test]
    fn bytes_go_both_ways_and_each_end_closes_by_itself() {
        let [echo, _] = forwarded();
        let clients = (0..3u8).map(|number| {
            thread::spawn(move || {
                let client = TcpStream::connect(echo).unwrap();
                let sent: Vec<u8> = (0..1_000_000u32)
                    .map(|at| (at >> 8) as u8 ^ number)
                    .collect();
                let mut sender = client.try_clone().unwrap();
                let bytes = sent.clone();
                let sending = thread::spawn(move || {
                    sender.write_all(&bytes).unwrap();
                    sender.shutdown(Shutdown::Write).unwrap();
                });
                let mut received = Vec::new();
                (&client).read_to_end(&mut received).unwrap();
                sending.join().unwrap();
                assert!(received == sent, "{} bytes", received.len());
            })
        });
        let clients: Vec<_> = clients.collect();
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
    }

    #[test]
    fn a_port_without_a_server_closes_and_a_client_that_goes_hurts_no_other() {
        let [echo, none] = forwarded();
        let refused = TcpStream::connect(none).unwrap().read(&mut [0]);
        assert!(matches!(refused, Ok(0) | Err(_)), "{refused:?}");
        for _ in 0..3 {
            let mut client = TcpStream::connect(echo).unwrap();
            client.write_all(&[1; 5_000]).unwrap();
            // It has unread bytes then, or will have: the kernel resets the connection.
            client.read_exact(&mut [0]).unwrap();
        }
        let mut client = TcpStream::connect(echo).unwrap();
        client.write_all(b"still there").unwrap();
        let mut back = [0; 11];
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"still there");
    }
}
