//! Provisions what is named on the command line and prints where it is.
//!
//! `cargo run -p qnic-images --example provision -- qemu kernel guest`

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use qnic_images::{Cache, GuestFile, KernelSeries, Progress, Provisioner, Report, Result};

const WHAT: &str = "qemu, tshark, iperf3, kernel, module, image, guest, doctor";

struct Lines;

impl Progress for Lines {
    fn step(&self, message: &str) {
        eprintln!("{message}");
    }

    fn bytes(&self, done: u64, total: u64) {
        eprint!("\r{:>5} of {} MB\r", done / 1_000_000, total / 1_000_000);
    }
}

fn main() -> ExitCode {
    match provision() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn provision() -> Result<()> {
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Lines));
    let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let repo = env::var_os("QNIC_REPO").map_or(clone, Into::into);
    for what in env::args().skip(1) {
        let start = Instant::now();
        for series in KernelSeries::ALL {
            match what.as_str() {
                "qemu" => println!("{:?}", provisioner.qemu()?),
                "tshark" => println!("{:?}", provisioner.tshark()?),
                "iperf3" => println!("{:?}", provisioner.iperf3()?),
                "kernel" => println!("{:?}", provisioner.kernel(series)?),
                "module" => println!("{:?}", provisioner.module(series, &repo)?),
                "image" => println!("{:?}", provisioner.guest_image(series, None, &[])?),
                "doctor" => println!("{:#?}", Report::of(provisioner.cache())),
                "guest" => {
                    let module = provisioner.module(series, &repo)?;
                    let this = GuestFile {
                        guest_path: "/bin/provision".into(),
                        host_path: env::current_exe().unwrap_or_default(),
                        mode: 0o755,
                    };
                    let image = provisioner.guest_image(series, Some(&module), &[this])?;
                    println!("{image:?}");
                }
                other => eprintln!("{other}: not one of {WHAT}"),
            }
            eprintln!("{what} ({series}): {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}
