/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Numbers of the device's ABI that the shim needs. The build script of the Rust
 * part compares each with the definition in the crate qnic-abi.
 */
#ifndef QNIC_ABI_H
#define QNIC_ABI_H

#define QNIC_VIRTIO_ID		39
#define QNIC_CONFIG_BYTES	64
#define QNIC_SRAM_REGION	0
#define QNIC_CONTROL		0
#define QNIC_EVENT		1
#define QNIC_FIRST_DOORBELL	2
#define QNIC_QUEUES_MAX		64
#define QNIC_REQUEST_BYTES	256
#define QNIC_REPLY_BYTES	512
#define QNIC_EVENT_BYTES	32
#define QNIC_HOST_PAGES		27
#define QNIC_READ_ONLY_PAGES	10
#define QNIC_FAULT_PAGES	64
#define QNIC_ARGUMENT_BYTES	360
#define QNIC_IOCTL_REGISTER	0xc0185101u
#define QNIC_IOCTL_INFO		0xc1685107u

#endif
