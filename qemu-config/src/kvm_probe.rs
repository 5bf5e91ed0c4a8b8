//! Finds out whether KVM really executes guest code here.
//!
//! `/dev/kvm` may open, and virtual machines may be created, on hosts where guest
//! code then fails on the first instruction that the layer beneath does not know.
//! So this makes a tiny machine in 64-bit mode and runs what every current kernel
//! and its programs run: plain code, BMI2 and AVX, each with a result to check.
//! What counts is the processor, not what KVM admits to: a layer that hides an
//! instruction is a layer on which stock guests may fail.
//!
//! ```text
//!   guest-physical   0x1000 ─ PML4 ─▶ 0x2000 ─ PDPT ─▶ 0x3000 ─ PD ─▶ 2 MiB, identity
//!                    0x4000   the code, ending in hlt
//! ```
//!
//! This is one of the two modules of the crate with `unsafe`: the guest's memory is
//! handed to the kernel.
#![allow(unsafe_code)]

use std::sync::mpsc::channel;
use std::time::Duration;

use kvm_bindings::{
    kvm_regs, kvm_segment, kvm_sregs, kvm_userspace_memory_region, CpuId, KVM_MAX_CPUID_ENTRIES,
};
use kvm_ioctls::{Kvm, VcpuExit};
use memmap2::MmapMut;

/// Time that code of a few instructions may take.
const LIMIT: Duration = Duration::from_secs(5);

const MEMORY_BYTES: usize = 0x10000;
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;
const CODE: u64 = 0x4000;

const PRESENT_WRITABLE: u64 = 0b11;
const LARGE_PAGE: u64 = 1 << 7;

const CR0_LONG_MODE: u64 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
const CR4_PAE: u64 = 1 << 5;
const CR4_SSE: u64 = 1 << 9 | 1 << 10;
const CR4_OSXSAVE: u64 = 1 << 18;
const EFER_LONG_MODE: u64 = 1 << 8 | 1 << 10;

/// A piece of guest code and what it leaves in `eax`.
struct Trial {
    name: &'static str,
    /// Returns true if the processor beneath can do it; if not, guests cannot expect it.
    possible: fn() -> bool,
    code: &'static [u8],
    expected: u32,
}

const TRIALS: [Trial; 3] = [
    Trial {
        name: "plain 64-bit code",
        possible: || true,
        // mov eax, 42; hlt
        code: &[0xb8, 42, 0, 0, 0, 0xf4],
        expected: 42,
    },
    Trial {
        name: "a BMI2 instruction",
        possible: || std::arch::is_x86_feature_detected!("bmi2"),
        // mov eax, 0x12345678; mov ecx, 0xff00; pext eax, eax, ecx; hlt
        code: &[
            0xb8, 0x78, 0x56, 0x34, 0x12, 0xb9, 0x00, 0xff, 0, 0, 0xc4, 0xe2, 0x7a, 0xf5, 0xc1,
            0xf4,
        ],
        expected: 0x56,
    },
    Trial {
        name: "an AVX instruction",
        possible: || std::arch::is_x86_feature_detected!("avx"),
        // xor ecx, ecx; xor edx, edx; mov eax, 7; xsetbv; mov eax, 1.0; vmovd xmm0, eax;
        // vaddps ymm0, ymm0, ymm0; vmovd eax, xmm0; hlt
        code: &[
            0x31, 0xc9, 0x31, 0xd2, 0xb8, 7, 0, 0, 0, 0x0f, 0x01, 0xd1, 0xb8, 0, 0, 0x80, 0x3f,
            0xc5, 0xf9, 0x6e, 0xc0, 0xc5, 0xfc, 0x58, 0xc0, 0xc5, 0xf9, 0x7e, 0xc0, 0xf4,
        ],
        expected: 0x4000_0000,
    },
];

/// Runs guest code. What was run, or why KVM cannot be used.
pub(crate) fn probe() -> Result<String, String> {
    let (report, result) = channel();
    let run = move || {
        // There is no receiver any more if this took too long.
        let _ = report.send(run_trials());
    };
    let thread = std::thread::Builder::new()
        .name("kvm-probe".into())
        .spawn(run);
    thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    let limit = LIMIT.as_secs();
    let late = |_| format!("guest code of a few instructions did not end within {limit} s");
    result.recv_timeout(LIMIT).map_err(late)?
}

fn run_trials() -> Result<String, String> {
    let kvm = Kvm::new().map_err(|error| format!("/dev/kvm cannot be opened: {error}"))?;
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(|error| format!("/dev/kvm does not tell what it supports: {error}"))?;
    let mut done = Vec::new();
    for trial in &TRIALS {
        if !(trial.possible)() {
            continue;
        }
        run_trial(&kvm, &cpuid, trial)
            .map_err(|error| format!("{} failed in a guest: {error}", trial.name))?;
        done.push(trial.name);
    }
    Ok(format!("KVM ran {} in a guest", done.join(", ")))
}

fn run_trial(kvm: &Kvm, cpuid: &CpuId, trial: &Trial) -> Result<(), String> {
    let said =
        |what: &'static str| move |error: kvm_ioctls::Error| format!("cannot {what}: {error}");
    // Guest-physical memory from address 0. It is dropped last: the machine must not
    // outlive it.
    let memory = MmapMut::map_anon(MEMORY_BYTES);
    let mut memory = memory.map_err(|error| format!("cannot map memory: {error}"))?;
    let mut put = |at: u64, bytes: &[u8]| {
        memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    put(PML4, &(PDPT | PRESENT_WRITABLE).to_le_bytes());
    put(PDPT, &(PD | PRESENT_WRITABLE).to_le_bytes());
    put(PD, &(PRESENT_WRITABLE | LARGE_PAGE).to_le_bytes());
    put(CODE, trial.code);
    let region = kvm_userspace_memory_region {
        memory_size: MEMORY_BYTES as u64,
        userspace_addr: memory.as_mut_ptr() as u64,
        ..kvm_userspace_memory_region::default()
    };
    let vm = kvm.create_vm().map_err(said("create a virtual machine"))?;
    // SAFETY: the region is exactly the mapping, which nothing refers to from here on and
    // which is dropped after the machine.
    let given = unsafe { vm.set_user_memory_region(region) };
    given.map_err(said("give the virtual machine memory"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(said("create a virtual CPU"))?;
    vcpu.set_cpuid2(cpuid).map_err(said("set CPUID"))?;
    let special = vcpu.get_sregs();
    let mut special = special.map_err(said("read the special registers"))?;
    enter_long_mode(&mut special, offers_xsave(cpuid));
    let set = vcpu.set_sregs(&special);
    set.map_err(said("set the special registers"))?;
    let registers = kvm_regs {
        rip: CODE,
        rflags: 2,
        ..kvm_regs::default()
    };
    let set = vcpu.set_regs(&registers);
    set.map_err(said("set the registers"))?;
    let ended = match vcpu.run().map_err(said("run"))? {
        VcpuExit::Hlt => Ok(()),
        VcpuExit::InternalError => Err("the kernel could not emulate it".to_owned()),
        VcpuExit::Shutdown => Err("it raised an exception".to_owned()),
        VcpuExit::FailEntry(reason, _) => Err(format!(
            "the processor refused to enter the guest ({reason:#x})"
        )),
        _ => Err("it left the guest for an unexpected reason".to_owned()),
    };
    ended?;
    let result = vcpu.get_regs().map_err(said("read the registers"))?.rax as u32;
    let expected = trial.expected;
    if result != expected {
        return Err(format!("it computed {result:#x} instead of {expected:#x}"));
    }
    Ok(())
}

fn enter_long_mode(special: &mut kvm_sregs, with_xsave: bool) {
    let segment = |selector, kind, long: bool| kvm_segment {
        selector,
        type_: kind,
        limit: u32::MAX,
        present: 1,
        s: 1,
        g: 1,
        l: u8::from(long),
        db: u8::from(!long),
        ..kvm_segment::default()
    };
    special.cs = segment(0x8, 0b1011, true);
    let data = segment(0x10, 0b0011, false);
    (special.ds, special.es, special.ss) = (data, data, data);
    special.cr0 = CR0_LONG_MODE;
    special.cr3 = PML4;
    special.cr4 = CR4_PAE | CR4_SSE | if with_xsave { CR4_OSXSAVE } else { 0 };
    special.efer = EFER_LONG_MODE;
}

/// Returns true if KVM lets guests enable AVX (CPUID 1, ecx bit 26: XSAVE).
fn offers_xsave(cpuid: &CpuId) -> bool {
    let leaf = cpuid.as_slice().iter().find(|entry| entry.function == 1);
    leaf.is_some_and(|entry| entry.ecx >> 26 & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_ends_with_a_reason_either_way() {
        let (Ok(text) | Err(text)) = probe();
        assert!(!text.is_empty());
        println!("{text}");
    }
}
