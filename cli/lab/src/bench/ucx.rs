//! A peer on this machine: UCX, by its `ucx_perftest`, which prints a line of names and a line of
//! figures.

use std::sync::Arc;

use anyhow::{Context, Result};
use qnic_images::{Cache, Program, Provisioner, Silent};

use super::two_programs::TwoPrograms;

/// How the program gets here by hand.
const INSTALL: &str = "apt-get install ucx-utils";

/// What it calls a megabyte.
const MEBIBYTE_MB: f64 = 1.048576;

/// The program over one of UCX's transports, or why it is not there.
pub(super) struct Ucx {
    program: Result<Program, String>,
    transport: &'static str,
}

impl Ucx {
    /// Finds the program, or installs it in the cache; `transport` is a value of `UCX_TLS`.
    pub(super) fn find(transport: &'static str) -> Self {
        let found = || -> Result<Program> {
            let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
            Ok(provisioner.ucx_perftest()?)
        };
        Ucx {
            program: found().map_err(|error| format!("{error:#}; by hand: {INSTALL}")),
            transport,
        }
    }

    /// Half a round trip of puts of so many bytes in microseconds, the median of so many.
    pub(super) fn half_round_trip(&mut self, size: usize, count: u64) -> Option<f64> {
        self.figure("ucp_put_lat", size, count, "50.0_percentile_lat")
    }

    /// A stream of so many puts, in MB/s.
    pub(super) fn stream(&mut self, size: usize, count: u64) -> Option<f64> {
        let rate = self.figure("ucp_put_bw", size, count, "overall_bw")?;
        Some(rate * MEBIBYTE_MB)
    }

    /// Why it measures nothing.
    pub(super) fn missing(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// `None` if there is nothing that measures it; the first reason is kept.
    fn figure(&mut self, test: &str, size: usize, count: u64, column: &str) -> Option<f64> {
        let program = self.program.as_ref().ok()?;
        match run(program, self.transport, (test, size, count)).and_then(|it| parse(&it, column)) {
            Ok(value) => Some(value),
            Err(error) => {
                self.program = Err(format!("{error:#}"));
                None
            }
        }
    }
}

fn run(
    program: &Program,
    transport: &'static str,
    (test, size, count): (&str, usize, u64),
) -> Result<String> {
    let words = |port: &str, more: &[&str]| {
        // It is no MPI job, which it believes by itself.
        let mut words = ["-P", "0", "-p", port].map(str::to_owned).to_vec();
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    };
    let (size, count) = (size.to_string(), count.to_string());
    let programs = TwoPrograms {
        name: "ucx_perftest",
        program,
        environment: &[("UCX_TLS", transport), ("UCX_WARN_UNUSED_ENV_VARS", "n")],
        server: &|port| words(port, &[]),
        client: &|port| {
            let test = ["127.0.0.1", "-t", test, "-s", &size, "-n", &count];
            words(port, &[&test[..], &["-v", "-f"]].concat())
        },
        refused: |_, said| said.contains("Connection refused"),
    };
    programs.run()
}

/// Reads the figure below the name of a column.
fn parse(text: &str, column: &str) -> Result<f64> {
    let mut lines = text.lines().map(|line| line.split(','));
    let place = lines.find_map(|mut names| names.position(|name| name.trim() == column));
    let figure = place.zip(lines.next());
    let figure = figure.and_then(|(place, mut row)| row.nth(place)?.trim().parse().ok());
    figure.with_context(|| format!("ucx_perftest says nothing about {column}: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What version 1.13.1 printed.
    const SAID: &str =
        "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                        10000,0.151,10.453,110.221,0.73,0.07,95669,9073\n";

    #[test]
    fn figures_are_read_by_the_names_of_their_columns() {
        assert_eq!(parse(SAID, "50.0_percentile_lat").unwrap(), 0.151);
        let behind = format!("a warning\n{SAID}");
        assert_eq!(parse(&behind, "overall_bw").unwrap(), 0.07);
        let head = SAID.lines().next().unwrap();
        for text in ["", head, "1,2,3\n4,5,6\n"] {
            let error = parse(text, "overall_bw").unwrap_err().to_string();
            assert!(error.contains("nothing about overall_bw"), "{error}");
        }
    }
}
