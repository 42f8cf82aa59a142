"""The embedded library: durable queues and streams in the process that uses them, without a server.

`penstock.open` opens a Box, a Box has Queues and Streams, a Queue gives Jobs; `penstock.aio` has
the same for asyncio. `penstock.open_stream` and `penstock.persist` use a directory for one stream,
without a box. From what users touch down:

    box, queue, stream, messages         Box, Queue, Stream, Job for threads, in a directory or on a
                                         broker
    sources                              what they call: BoxSource, QueueSource, StreamSource
    directory_box, directory_queue       a directory as a source (penstock.client is the broker)
    stream_reading, local_stream         passes over a stream, named readers; chunks and following
    driver, waiting                      the lock, the thread, group commit, interrupts, forks
    core                                 engine, queues and memory monitor of a box
    alone_stream, persist                a stream without a box
    option_parsing, stream_record        what users give, checked
    box_headers, events

The core (`penstock.queues`, `penstock.storage`) decides what happens to messages.
"""
