// SPDX-License-Identifier: GPL-2.0
/*
 * Control queue: requests of the driver, many at once. Event queue: buffers that
 * the device fills, and the workers that serve its page faults.
 */
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>

#include "ffi.h"
#include "shim.h"

/* ---- control queue ---- */

/*
 * One request; shared by the thread that waits, if one does, and the queue.
 *
 * Interrupts of the control queue are off from a post to the next wait: a response
 * for which no thread waits is taken when the queue is used next.
 */
struct qnic_request {
	u8 request[QNIC_REQUEST_BYTES];
	u8 response[QNIC_REPLY_BYTES];
	struct completion done;
	refcount_t references;
	bool failed;
};

static void request_put(struct qnic_request *request)
{
	if (refcount_dec_and_test(&request->references))
		kfree(request);
}

/* The device has returned a request. */
static void request_finish(struct qnic_request *request, bool failed)
{
	request->failed = failed;
	complete(&request->done);
	request_put(request);
}

/* Takes all responses in the queue, which makes room; control_lock is held. */
static void take_responses(struct virtqueue *queue)
{
	struct qnic_dev *dev = queue->vdev->priv;
	struct qnic_request *request;
	unsigned int bytes;
	bool room = false;

	while ((request = virtqueue_get_buf(queue, &bytes))) {
		request_finish(request, bytes < sizeof(request->response));
		room = true;
	}
	if (room)
		wake_up_all(&dev->control_room);
}

/* From here on a response interrupts; earlier ones are taken. control_lock is held. */
static void interrupt_on_response(struct virtqueue *queue)
{
	do {
		virtqueue_disable_cb(queue);
		take_responses(queue);
	} while (!virtqueue_enable_cb(queue));
}

void qnic_control_callback(struct virtqueue *queue)
{
	struct qnic_dev *dev = queue->vdev->priv;
	unsigned long flags;

	spin_lock_irqsave(&dev->control_lock, flags);
	if (dev->control_waits)
		interrupt_on_response(queue);
	else
		take_responses(queue);
	spin_unlock_irqrestore(&dev->control_lock, flags);
}

/* A thread begins, or ends, to wait for responses or for room. */
static void control_wait(struct qnic_dev *dev, int threads)
{
	struct virtqueue *queue = dev->queues[QNIC_CONTROL];
	unsigned long flags;

	spin_lock_irqsave(&dev->control_lock, flags);
	dev->control_waits += threads;
	if (!dev->stopped && threads > 0)
		interrupt_on_response(queue);
	else if (!dev->stopped && !dev->control_waits)
		virtqueue_disable_cb(queue);
	spin_unlock_irqrestore(&dev->control_lock, flags);
}

/*
 * 0, -ENOSPC or -ENODEV; on success the queue holds a reference. Requests that
 * the device may answer late leave half of the queue free.
 */
static int request_submit(struct qnic_dev *dev, struct qnic_request *request, bool late)
{
	struct scatterlist out, in, *lists[] = { &out, &in };
	struct virtqueue *queue = dev->queues[QNIC_CONTROL];
	unsigned long flags;
	int ret = -ENODEV;

	sg_init_one(&out, request->request, sizeof(request->request));
	sg_init_one(&in, request->response, sizeof(request->response));
	spin_lock_irqsave(&dev->control_lock, flags);
	if (dev->stopped)
		goto out;
	take_responses(queue);
	ret = -ENOSPC;
	if (late && queue->num_free <= virtqueue_get_vring_size(queue) / 2)
		goto out;
	ret = virtqueue_add_sgs(queue, lists, 1, 1, request, GFP_ATOMIC);
	if (!ret) {
		refcount_inc(&request->references);
		virtqueue_kick(queue);
	}
out:
	spin_unlock_irqrestore(&dev->control_lock, flags);
	return ret == -ENOMEM ? -ENOSPC : ret;
}

static struct qnic_request *request_new(const u8 *bytes)
{
	struct qnic_request *request = kzalloc(sizeof(*request), GFP_KERNEL | __GFP_NOFAIL);

	memcpy(request->request, bytes, sizeof(request->request));
	init_completion(&request->done);
	refcount_set(&request->references, 1);
	return request;
}

s32 qnic_post(struct qnic_dev *dev, const u8 *bytes, u32 timeout_ms)
{
	struct qnic_request *request = request_new(bytes);
	int ret = request_submit(dev, request, false);

	if (ret == -ENOSPC) {
		control_wait(dev, 1);
		wait_event_timeout(dev->control_room,
				   (ret = request_submit(dev, request, false)) != -ENOSPC,
				   msecs_to_jiffies(timeout_ms));
		control_wait(dev, -1);
	}
	request_put(request);
	return ret == -ENOSPC ? -ETIME : ret;
}

s32 qnic_request(struct qnic_dev *dev, const u8 *bytes, u8 *response, u32 timeout_ms,
		 bool interruptible)
{
	unsigned long timeout = msecs_to_jiffies(timeout_ms);
	struct qnic_request *request = request_new(bytes);
	long left;
	int ret;

	control_wait(dev, 1);
	if (interruptible)
		left = wait_event_interruptible_timeout(dev->control_room,
			(ret = request_submit(dev, request, true)) != -ENOSPC, timeout);
	else
		left = wait_event_timeout(dev->control_room,
			(ret = request_submit(dev, request, false)) != -ENOSPC, timeout);
	if (ret) {
		/* Never submitted: interrupted, no room in time, or no device. */
		if (ret == -ENOSPC && left < 0)
			ret = -EINTR;
		else if (ret == -ENOSPC)
			ret = interruptible ? -EBUSY : -ETIME;
		goto out;
	}
	if (interruptible)
		left = wait_for_completion_interruptible_timeout(&request->done, timeout);
	else
		left = wait_for_completion_timeout(&request->done, timeout);
	if (left < 0)
		ret = -EINTR;
	else if (!left)
		ret = -ETIME;
	else if (request->failed)
		ret = -ENODEV;
	else
		memcpy(response, request->response, sizeof(request->response));
out:
	control_wait(dev, -1);
	request_put(request);
	return ret;
}

/* Resets the device: it accesses no memory any more, and requests fail. */
void qnic_stop(struct qnic_dev *dev)
{
	struct qnic_request *request;
	unsigned long flags;
	bool stopped;

	mutex_lock(&dev->stop_lock);
	spin_lock_irqsave(&dev->control_lock, flags);
	stopped = dev->stopped;
	dev->stopped = true;
	spin_unlock_irqrestore(&dev->control_lock, flags);
	if (!stopped) {
		virtio_reset_device(dev->vdev);
		spin_lock_irqsave(&dev->control_lock, flags);
		while ((request = virtqueue_detach_unused_buf(dev->queues[QNIC_CONTROL])))
			request_finish(request, true);
		spin_unlock_irqrestore(&dev->control_lock, flags);
		wake_up_all(&dev->control_room);
	}
	mutex_unlock(&dev->stop_lock);
}

/* ---- event queue ---- */

/* Starts an idle worker; if all are busy, one of them will find the fault. */
static void worker_start(struct qnic_dev *dev)
{
	int i;

	for (i = 0; i < QNIC_WORKERS; i++) {
		if (!test_and_set_bit(i, &dev->busy_workers)) {
			queue_work(dev->workqueue, &dev->workers[i].work);
			return;
		}
	}
}

int qnic_event_post(struct qnic_dev *dev, struct qnic_event *event)
{
	struct scatterlist in;

	sg_init_one(&in, event->bytes, sizeof(event->bytes));
	return virtqueue_add_inbuf(dev->queues[QNIC_EVENT], &in, 1, event, GFP_ATOMIC);
}

/*
 * Takes all events in the queue. It stops early, sets `stalled` and starts a
 * worker to go on, when the fault queue is full, or after so many events that other
 * interrupts should run.
 */
void qnic_event_callback(struct virtqueue *queue)
{
	struct qnic_dev *dev = queue->vdev->priv;
	int budget = QNIC_EVENTS;
	struct qnic_event *event;
	unsigned long flags;
	unsigned int bytes;
	bool more = true;

	spin_lock_irqsave(&dev->event_lock, flags);
	WRITE_ONCE(dev->stalled, false);
	if (!dev->driver || READ_ONCE(dev->stopped))
		goto out;
	while (more) {
		virtqueue_disable_cb(queue);
		if (!budget || !qnic_rs_event_room(dev->driver)) {
			WRITE_ONCE(dev->stalled, true);
			worker_start(dev);
			break;
		}
		event = virtqueue_get_buf(queue, &bytes);
		if (!event) {
			more = !virtqueue_enable_cb(queue);
			continue;
		}
		if (bytes == sizeof(event->bytes) && qnic_rs_event(dev->driver, event->bytes))
			worker_start(dev);
		qnic_event_post(dev, event);
		budget--;
	}
	if (budget < QNIC_EVENTS)
		virtqueue_kick(queue);
out:
	spin_unlock_irqrestore(&dev->event_lock, flags);
}

void qnic_worker_run(struct work_struct *work)
{
	struct qnic_worker *worker = container_of(work, struct qnic_worker, work);
	struct qnic_dev *dev = worker->dev;
	int index = worker - dev->workers;

	do {
		do {
			if (READ_ONCE(dev->stalled))
				qnic_event_callback(dev->queues[QNIC_EVENT]);
		} while (qnic_rs_serve_fault(dev->driver));
		clear_bit(index, &dev->busy_workers);
		smp_mb__after_atomic();
	/* This worker serves the events that came while all of them were busy. */
	} while ((READ_ONCE(dev->stalled) || qnic_rs_serve_fault(dev->driver)) &&
		 !test_and_set_bit(index, &dev->busy_workers));
}
