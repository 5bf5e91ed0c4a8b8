//! Peers on this machine: libfabric's `fi_pingpong`, and UCX's `ucx_perftest`.
//!
//! ```text
//!   server ◄── shared memory or TCP ──► client, which prints a head and a row:
//!   bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec         libfabric
//!   iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,…          UCX
//! ```
//! Both processes spin on the same memory, and no third one stands between them. `usec/xfer` is half a round
//! trip, the mean of all; the rate beside it has two digits, so it is not used.

use std::sync::Arc;

use anyhow::{anyhow, Context, Result};
use qnic_images::{Cache, Program, Provisioner, Silent};
use rustix::io::Errno;

use super::two_programs::TwoPrograms;

/// What UCX calls a megabyte.
const MEBIBYTE_MB: f64 = 1.048576;

/// A program over one of its transports.
pub(super) struct Peer {
    /// The program, or why it is not there.
    program: Result<Program, String>,
    is_ucx: bool,
    /// A provider of libfabric, or a value of `UCX_TLS`.
    over: &'static str,
}

impl Peer {
    /// Finds `fi_pingpong`, or installs it in the cache.
    pub(super) fn libfabric(provider: &'static str) -> Self {
        Peer {
            program: find(|it| Ok(it.fi_pingpong()?), "libfabric-bin"),
            is_ucx: false,
            over: provider,
        }
    }

    /// Finds `ucx_perftest`, or installs it in the cache.
    pub(super) fn ucx(transport: &'static str) -> Self {
        Peer {
            program: find(|it| Ok(it.ucx_perftest()?), "ucx-utils"),
            is_ucx: true,
            over: transport,
        }
    }

    /// Half a round trip of so many bytes in microseconds: the mean of so many with libfabric, the median
    /// with UCX.
    pub(super) fn half_round_trip(&self, size: usize, count: u64) -> Result<f64> {
        match self.is_ucx {
            true => self.ucx_figure("ucp_put_lat", size, count, "50.0_percentile_lat"),
            false => parse_libfabric(&self.run_libfabric(size, count)?, size),
        }
    }

    /// A stream of so many puts by UCX, in MB/s.
    pub(super) fn stream(&self, size: usize, count: u64) -> Result<f64> {
        Ok(self.ucx_figure("ucp_put_bw", size, count, "overall_bw")? * MEBIBYTE_MB)
    }

    fn program(&self) -> Result<&Program> {
        self.program.as_ref().map_err(|why| anyhow!(why.clone()))
    }

    fn run_libfabric(&self, size: usize, count: u64) -> Result<String> {
        let (size, count) = (size.to_string(), count.to_string());
        let words = |more: &[&str]| {
            let kind = ["-p", self.over, "-e", "rdm", "-m", "tagged"];
            owned(&[&kind[..], &["-S", &size, "-I", &count], more].concat())
        };
        let programs = TwoPrograms {
            name: "fi_pingpong",
            program: self.program()?,
            environment: &[],
            server: &|port| words(&["-B", port]),
            client: &|port| words(&["-P", port, "127.0.0.1"]),
            refused: |status, _| status.code() == Some(Errno::CONNREFUSED.raw_os_error()),
        };
        programs.run()
    }

    fn ucx_figure(&self, test: &str, size: usize, count: u64, column: &str) -> Result<f64> {
        // It is no MPI job, which it believes by itself.
        let words =
            |port: &str, more: &[&str]| owned(&[&["-P", "0", "-p", port][..], more].concat());
        let (size, count) = (size.to_string(), count.to_string());
        let programs = TwoPrograms {
            name: "ucx_perftest",
            program: self.program()?,
            environment: &[("UCX_TLS", self.over), ("UCX_WARN_UNUSED_ENV_VARS", "n")],
            server: &|port| words(port, &[]),
            client: &|port| {
                let test = ["127.0.0.1", "-t", test, "-s", &size, "-n", &count];
                words(port, &[&test[..], &["-v", "-f"]].concat())
            },
            refused: |_, said| said.contains("Connection refused"),
        };
        parse_ucx(&programs.run()?, column)
    }
}

fn find(find: fn(&Provisioner) -> Result<Program>, package: &str) -> Result<Program, String> {
    let provisioner = Cache::of_user().map(|cache| Provisioner::new(cache, Arc::new(Silent)));
    let found = provisioner.map_err(Into::into).and_then(|it| find(&it));
    found.map_err(|error| format!("{error:#}; by hand: apt-get install {package}"))
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Microseconds of half a round trip in the row of `size`, which libfabric shows as `1k` or `1m`.
fn parse_libfabric(text: &str, size: usize) -> Result<f64> {
    let shown = match size {
        0..0x400 => size.to_string(),
        0x400..0x10_0000 => format!("{}k", size >> 10),
        _ => format!("{}m", size >> 20),
    };
    let mut lines = text.lines().map(|line| line.split_whitespace());
    let found = lines.by_ref().find_map(|mut head| {
        let bytes = head.next().filter(|word| *word == "bytes");
        bytes.and_then(|_| head.position(|word| word == "usec/xfer"))
    });
    let row = found.zip(lines.next()).and_then(|(place, mut row)| {
        row.next().filter(|word| *word == shown)?;
        row.nth(place)?.parse().ok()
    });
    row.with_context(|| format!("fi_pingpong says nothing about {size} bytes: {text:?}"))
}

/// The figure below the name of a column.
fn parse_ucx(text: &str, column: &str) -> Result<f64> {
    let mut lines = text.lines().map(|line| line.split(','));
    let place = lines.find_map(|mut names| names.position(|name| name.trim() == column));
    let figure = place.zip(lines.next());
    let figure = figure.and_then(|(place, mut row)| row.nth(place)?.trim().parse().ok());
    figure.with_context(|| format!("ucx_perftest says nothing about {column}: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::super::tables::Tables;
    use super::*;

    /// What version 1.17.0 of libfabric printed.
    const HEAD: &str =
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";
    const TINY: &str =
        "8       1k      =1k      15k         0.15s      0.11      72.84       0.01\n";
    const LONG: &str =
        "1m      256     =256     512m        2.70s    198.53    5281.78       0.00\n";

    /// What version 1.13.1 of UCX printed.
    const UCX: &str =
        "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
         10000,0.151,10.453,110.221,0.73,0.07,95669,9073\n";

    #[test]
    fn figures_are_read_below_their_names() {
        let parsed = |rows: &str, size| parse_libfabric(&format!("{HEAD}{rows}"), size).unwrap();
        assert_eq!(parsed(TINY, 8), 72.84);
        assert_eq!(parsed(LONG, 1 << 20), 5281.78);
        assert_eq!(
            parse_libfabric(&format!("a warning\n{HEAD}{TINY}"), 8).unwrap(),
            72.84
        );
        assert_eq!(parse_ucx(UCX, "50.0_percentile_lat").unwrap(), 0.151);
        assert_eq!(
            parse_ucx(&format!("a warning\n{UCX}"), "overall_bw").unwrap(),
            0.07
        );
    }

    #[test]
    fn what_has_no_figure_is_an_error_that_says_of_what() {
        let cut = format!("{HEAD}8       1k      =1k");
        for text in ["", HEAD, TINY, &format!("{HEAD}{LONG}"), &cut] {
            let error = parse_libfabric(text, 8).unwrap_err().to_string();
            assert!(error.contains("nothing about 8 bytes"), "{error}");
        }
        for text in ["", UCX.lines().next().unwrap(), "1,2,3\n4,5,6\n"] {
            let error = parse_ucx(text, "overall_bw").unwrap_err().to_string();
            assert!(error.contains("nothing about overall_bw"), "{error}");
        }
    }

    #[test]
    fn a_program_that_fails_is_asked_once_and_says_why() {
        let program = |path: &str| Program {
            program: path.into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        let mut peer = Peer {
            program: Ok(program("/bin/false")),
            is_ucx: false,
            over: "shm",
        };
        let mut tables = Tables::default();
        assert_eq!(tables.attempt("it", || peer.half_round_trip(8, 1)), None);
        peer.program = Ok(program("/bin/true"));
        let mut asked = false;
        tables.attempt("it", || {
            asked = true;
            Ok(())
        });
        assert!(!asked);
        assert_eq!(
            tables
                .missing("it")
                .map(|why| why.contains("exit status: 1")),
            Some(true)
        );
    }
}
