//! What library and host mode say to the application's logger.

use std::sync::{Mutex, Once};

use log::{Level, LevelFilter, Log, Metadata, Record};
use qnic::{physical, Error, Port};

use crate::cluster::{Cluster, Peer, BOTH, NAME};

/// All lines of this program: other tests run beside this one.
struct Lines(Mutex<Vec<(Level, String, String)>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = (
            record.level(),
            record.target().to_owned(),
            record.args().to_string(),
        );
        self.0.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

/// The lines of a level with this text, of a part of the library or of host mode.
fn lines(level: Level, text: &str) -> usize {
    let lines = LINES.0.lock().unwrap();
    let of_us = |target: &str| target.starts_with("qnic::") || target.starts_with("qnic_host::");
    let found = lines
        .iter()
        .filter(|(of, target, line)| *of == level && of_us(target) && line.contains(text));
    found.count()
}

fn listen() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        log::set_logger(&LINES).unwrap();
        log::set_max_level(LevelFilter::Info);
    });
}

/// A port and a segment with a number of their own: no other test uses them.
const PORT: Port = Port(0x7e57);

#[test]
fn rare_events_are_logged_by_the_logger_of_the_application() {
    listen();
    let mut cluster = Cluster::new(1);
    let socket = cluster.socket(0);
    let (nic, host) = cluster.host_node(0);
    let opened = qnic::Nic::open_host_with(cluster.socket(0).with_extension("none"), 1 << 20);
    assert!(opened.is_err());
    host.node().allow_physical();
    let endpoint = physical::register(&nic, PORT).unwrap();
    assert!(nic.register(PORT).is_err());
    assert_eq!(lines(Level::Warn, "register on port 32343"), 1);
    let buffer = endpoint.allocate(4096).unwrap();
    let address = format!("4096 bytes at {:#x} are pinned", buffer.address());
    let _pinned = physical::export(&endpoint, NAME, &buffer, BOTH).unwrap();
    assert_eq!(lines(Level::Info, &address), 1);
    let again = physical::export(&endpoint, NAME, &buffer, BOTH);
    assert!(again.is_err());
    assert_eq!(
        lines(
            Level::Warn,
            &format!("export 4096 bytes at {:#x}", buffer.address())
        ),
        1
    );
    endpoint.reset_queue().unwrap();
    assert_eq!(
        lines(
            Level::Warn,
            "port 32343 of node 0: the command queue was reset"
        ),
        1
    );
    cluster.kill_device();
    for _ in 0..2 {
        assert!(matches!(
            endpoint.notification(crate::cluster::ONE).wait(None),
            Err(Error::DeviceGone)
        ));
    }
    assert_eq!(
        lines(
            Level::Error,
            "port 32343 of node 0: the qnic device is gone"
        ),
        1
    );
    assert!(lines(Level::Warn, "the device process is gone") > 0);
    drop(socket);
}

/// A transfer logs nothing: its path has no place for it.
#[test]
fn transfers_log_nothing() {
    listen();
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    let said = |path: &std::path::Path| lines(Level::Info, &path.display().to_string());
    assert_eq!(said(&cluster.socket(0)), 1);
    let (a, b) = (Peer::new(&nic, 0x7e58, 4096), Peer::new(&nic, 0x7e59, 4096));
    let remote = a.import(&b);
    for round in 0..100u8 {
        a.write(&remote, 0, &[round; 50]);
    }
    for port in [0x7e58, 0x7e59] {
        let text = format!("port {port}");
        let all = [Level::Error, Level::Warn, Level::Info].map(|level| lines(level, &text));
        assert_eq!(all, [0, 0, 0]);
    }
}
