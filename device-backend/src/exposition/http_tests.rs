//! Clients of the endpoint, good and hostile. No test waits for a time: each waits until the
//! server closes, or answers.

use std::net::SocketAddr;
use std::thread::{scope, Scope};

use super::*;

const LONG: Bounds = Bounds {
    clients: 4,
    head: 512,
    drained: 1024,
    time: Duration::from_secs(3600),
};

/// Runs a server with a text of `length` bytes while `work` runs.
fn with_server(bounds: Bounds, length: usize, work: impl FnOnce(SocketAddr)) {
    /// Ends the server also if `work` panics.
    struct Raise<'a>(&'a Stop);
    impl Drop for Raise<'_> {
        fn drop(&mut self) {
            self.0.raise();
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Stop::new().unwrap();
    let text: Arc<[u8]> = vec![b'x'; length].into();
    scope(|scope: &Scope<'_, '_>| {
        let listeners = [Listener::Tcp(listener)];
        let stop = &stop;
        let server = move || serve(&listeners, &bounds, &mut || Some(text.clone()), stop);
        scope.spawn(server);
        let _raise = Raise(stop);
        work(address);
    });
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // A server that hangs fails the test.
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).unwrap();
    stream
}

/// All that the server sends until it closes.
fn rest(mut stream: TcpStream) -> io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map(|_| text)
}

/// Returns true if the server has closed the connection without a byte.
fn is_closed(stream: TcpStream) -> bool {
    match rest(stream) {
        Ok(text) => text.is_empty(),
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    rest(stream).unwrap()
}

#[test]
fn requests_get_their_answers() {
    with_server(LONG, 3, |address| {
        let good = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n"), "{good}");
        assert!(good.contains("text/plain; version=0.0.4;"), "{good}");
        assert!(good.ends_with("Content-Length: 3\r\nAllow: GET, HEAD\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\nxxx"), "{good}");
        let head = ask(address, "HEAD /metrics?x=y HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 3\r\n"), "{head}");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        let many = "a: b\r\n".repeat(70);
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            (
                "POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\nxxxxxxxxx",
                "405",
            ),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET /metrics HTTP/0.9\r\n\r\n", "400"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
            ("\u{0}\u{1}\u{2}\r\n\r\n", "400"),
            (&format!("GET /metrics HTTP/1.1\r\n{many}\r\n"), "431"),
            (&format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(600)), "431"),
        ] {
            let response = ask(address, request);
            let expected = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&expected), "{request:?}: {response}");
        }
    });
}

#[test]
fn a_head_in_pieces_is_put_together_while_others_are_served() {
    with_server(LONG, 3, |address| {
        let mut slow = connect(address);
        for piece in ["GET /met", "rics HT", "TP/1.1\r\nHo", "st: x\r\n\r"] {
            slow.write_all(piece.as_bytes()).unwrap();
            let other = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
            assert!(other.ends_with("xxx"), "{other}");
        }
        slow.write_all(b"\n").unwrap();
        assert!(rest(slow).unwrap().ends_with("xxx"));
    });
}

#[test]
fn one_client_too_many_closes_the_oldest() {
    with_server(LONG, 3, |address| {
        let mut silent: Vec<_> = (0..LONG.clients).map(|_| connect(address)).collect();
        let answer = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("xxx"), "{answer}");
        assert!(is_closed(silent.remove(0)));
        let mut second = silent.remove(0);
        second.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert!(rest(second).unwrap().ends_with("xxx"));
    });
}

#[test]
fn who_is_silent_reads_nothing_or_never_ends_is_closed_in_time() {
    let bounds = Bounds {
        time: Duration::from_millis(20),
        ..LONG
    };
    // More than the socket buffers of both sides hold.
    with_server(bounds, 64 << 20, |address| {
        assert!(is_closed(connect(address)));
        let mut half = connect(address);
        // The server may have closed it meanwhile.
        let _ = half.write_all(b"GET /metrics HTTP/1.1\r\nHost:");
        assert!(is_closed(half));
        let mut deaf = connect(address);
        let _ = deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        // It only looks whether there is something to write: that fails once the server has
        // closed its side.
        while deaf.write_all(b"x").is_ok() {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_request_without_end_costs_one_head() {
    with_server(LONG, 3, |address| {
        let mut endless = connect(address);
        // The server reads a head and what it drains; then it closes, and writing fails.
        while endless.write_all(&[b'a'; 4096]).is_ok() {}
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("xxx"));
    });
}

#[test]
fn unix_sockets_are_served_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m");
    let listeners = [Listener::Unix(UnixListener::bind(&path).unwrap())];
    let stop = Stop::new().unwrap();
    scope(|scope| {
        scope.spawn(|| serve(&listeners, &LONG, &mut || None, &stop));
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        stop.raise();
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    });
}
