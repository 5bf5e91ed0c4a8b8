//! The guest's side over a socket pair instead of a virtio-serial port.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use qnic_exec::guest::serve;
use qnic_exec::wire::{Decoder, Frame, Start, ToGuest, ToHost};

const NONCE: u64 = 42;
const READ_TIMEOUT: Duration = Duration::from_secs(30);

struct Host {
    stream: UnixStream,
    decoder: Decoder,
    guest: JoinHandle<std::io::Result<()>>,
}

impl Host {
    fn connect() -> Self {
        let (stream, port) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        let guest = std::thread::spawn(move || serve(port.into(), NONCE));
        let mut host = Self {
            stream,
            decoder: Decoder::default(),
            guest,
        };
        send(&host.stream, &ToGuest::Open(NONCE));
        while !host.decoder.skip_preamble(NONCE) {
            host.fill();
        }
        host
    }

    fn start(argv: &[&str], stdin: bool) -> Self {
        let host = Self::connect();
        let start = Start {
            argv: argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
            stdin,
            ..Start::default()
        };
        send(&host.stream, &ToGuest::Start(start));
        host
    }

    fn fill(&mut self) {
        let mut buffer = [0; 4096];
        let read = self.stream.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "the guest closed its port");
        self.decoder.push(&buffer[..read]);
    }

    fn next(&mut self) -> ToHost {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            self.fill();
        }
    }

    /// Everything up to the last frame: output, errors, end.
    fn finish(mut self) -> (Vec<u8>, Vec<u8>, ToHost) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            match self.next() {
                ToHost::Stdout(bytes) => out.extend(bytes),
                ToHost::Stderr(bytes) => err.extend(bytes),
                last => {
                    self.guest.join().unwrap().unwrap();
                    return (out, err, last);
                }
            }
        }
    }
}

fn send(mut stream: &UnixStream, frame: &ToGuest) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
}

#[test]
fn output_errors_and_code_arrive_apart() {
    let host = Host::start(&["sh", "-c", "printf out; printf err >&2; exit 3"], false);
    let expected = (b"out".to_vec(), b"err".to_vec(), ToHost::Exited(3));
    assert_eq!(host.finish(), expected);
}

#[test]
fn megabytes_of_any_bytes_go_in_and_out() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let host = Host::start(&["cat"], true);
    let (to_guest, sent) = (host.stream.try_clone().unwrap(), content.clone());
    let feeder = std::thread::spawn(move || {
        for part in sent.chunks(30_000) {
            send(&to_guest, &ToGuest::Stdin(part.to_vec()));
        }
        send(&to_guest, &ToGuest::StdinEnd);
    });
    let (out, err, end) = host.finish();
    feeder.join().unwrap();
    assert_eq!((&err[..], end), (&b""[..], ToHost::Exited(0)));
    let (found, all) = (out.len(), content.len());
    assert!(out == content, "{found} of {all} bytes came back");
}

#[test]
fn a_program_that_does_not_exist_is_reported_with_its_error_number() {
    let (_, _, end) = Host::start(&["/nowhere/x"], false).finish();
    let ToHost::NotStarted { errno, message } = end else {
        panic!("{end:?}")
    };
    assert_eq!(errno, 2);
    assert!(message.starts_with("/nowhere/x: "), "{message}");
}

#[test]
fn a_signal_reaches_the_whole_group() {
    let mut host = Host::start(&["sh", "-c", "tail -f /dev/null & echo $!; wait"], false);
    assert!(matches!(host.next(), ToHost::Stdout(_)));
    send(&host.stream, &ToGuest::Signal(15));
    assert_eq!(host.finish().2, ToHost::Signaled(15));
}

#[test]
fn a_host_that_goes_away_takes_the_command_with_it() {
    let mut host = Host::start(&["sh", "-c", "echo $$; exec tail -f /dev/null"], false);
    let ToHost::Stdout(pid) = host.next() else {
        panic!("no pid")
    };
    drop(host.stream);
    host.guest.join().unwrap().unwrap();
    let pid = String::from_utf8(pid).unwrap();
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn a_helper_left_behind_ends_when_another_is_opened() {
    let mut host = Host::start(&["cat", "/dev/zero"], false);
    send(&host.stream, &ToGuest::Open(NONCE + 1));
    while host.stream.read(&mut [0; 4096]).unwrap() > 0 {}
    host.guest.join().unwrap().unwrap();
}

#[test]
fn a_process_left_in_the_background_does_not_hold_the_end_back() {
    let host = Host::start(&["sh", "-c", "sleep 1000 & echo $!"], false);
    let (out, _, end) = host.finish();
    assert_eq!(end, ToHost::Exited(0));
    let pid: i32 = String::from_utf8(out).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn nonsense_from_the_host_ends_the_helper() {
    let mut host = Host::connect();
    host.stream.write_all(&[200; 32]).unwrap();
    assert!(host.guest.join().unwrap().is_err());
}
