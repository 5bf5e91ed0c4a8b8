// The C interface of qnic: docs/c-api.md.

#ifndef QNIC_H
#define QNIC_H

#include "qnic/error.h"
#include "qnic/nic.h"
#include "qnic/endpoint.h"
#include "qnic/memory.h"
#include "qnic/request.h"
#include "qnic/transfer.h"
#include "qnic/notification.h"
#include "qnic/atomic.h"
#include "qnic/message.h"
#include "qnic/names.h"
#include "qnic/group.h"
#include "qnic/sync.h"
#include "qnic/channel.h"
#include "qnic/datagram.h"
#include "qnic/stream.h"
#include "qnic/machine.h"

#endif
