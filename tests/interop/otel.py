#!/usr/bin/env python3
"""A collector of OpenTelemetry that tells what it is sent, a line each.

otel.py PORT [official]
Without `official` it reads the messages by their field numbers; with it, by the classes of the package opentelemetry-proto.
It answers with the status that stands in the file `status`, or never where that says `hang`. The header `api-key` has to be `key=1`."""
import collections
import http.server
import os
import struct
import sys
import time

official = sys.argv[2:] == ["official"]
if official:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def fields(message):
    """The values of each field of a message (protobuf.dev, Encoding)."""
    at, found = 0, collections.defaultdict(list)

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        kind = key & 7
        if kind == 0:
            value = number()
        elif kind == 1:
            value = message[at : at + 8]
            at += 8
        else:
            assert kind == 2, kind
            length = number()
            value = message[at : at + length]
            at += length
        found[key >> 3].append(value)
    return found


def below(message, *path):
    found = [message]
    for field in path:
        found = [inner for outer in found for inner in fields(outer)[field]]
    return found


def attributes(pairs):
    told = {}
    for pair in pairs:
        pair = fields(pair)
        value = fields(pair[2][0])
        told[pair[1][0].decode()] = value[1][0].decode() if value[1] else str(value[3][0])
    return told


def first(values, default=b""):
    return values[0] if values else default


def spans_by_numbers(body):
    for span in map(fields, below(body, 1, 2, 2)):
        start, end = (struct.unpack("<Q", span[field][0])[0] for field in (7, 8))
        status = fields(first(span[15]))
        yield (first(span[5]).decode(), span[1][0].hex(), span[2][0].hex(), first(span[4]).hex(), first(span[6]), end - start,
               attributes(span[9]), first(status[3], 0), first(status[2]).decode())


def metrics_by_numbers(body):
    for metric in map(fields, below(body, 1, 2, 2)):
        kind = "sum" if metric[7] else "gauge"
        data = fields(first(metric[7] or metric[5]))
        for point in map(fields, data[1]):
            value = struct.unpack("<d", point[4][0]) if point[4] else struct.unpack("<q", point[6][0])
            yield metric[1][0].decode(), kind, attributes(point[7]), value[0]


def resource_by_numbers(body):
    return attributes(below(body, 1, 1, 1))


def told(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def spans_by_classes(body):
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield (span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
                   span.end_time_unix_nano - span.start_time_unix_nano, told(span.attributes), span.status.code, span.status.message)


def metrics_by_classes(body):
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            kind = metric.WhichOneof("data")
            assert kind == "gauge" or (metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2), metric
            for point in getattr(metric, kind).data_points:
                assert point.start_time_unix_nano <= point.time_unix_nano, point
                yield metric.name, kind, told(point.attributes), getattr(point, point.WhichOneof("value"))


def resource_by_classes(body):
    return told(ExportTraceServiceRequest.FromString(body).resource_spans[0].resource.attributes)


spans = spans_by_classes if official else spans_by_numbers
metrics = metrics_by_classes if official else metrics_by_numbers
resource = resource_by_classes if official else resource_by_numbers
KINDS = {1: "internal", 2: "server"}


class Collector(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        status = open("status").read().strip()
        if status == "hang":
            time.sleep(60)
        elif status == "200":
            assert self.headers["content-type"] == "application/x-protobuf", self.headers
            assert self.headers["api-key"] == "key=1", self.headers
            self.tell(body)
        self.send_response(int(status) if status.isdigit() else 503)
        self.send_header("content-length", "0")
        self.end_headers()

    def tell(self, body):
        lines = []
        if self.path.endswith("/v1/traces"):
            lines.append(f"resource {resource(body)['service.name']}")
            for name, trace, span, parent, kind, took, about, code, message in spans(body):
                assert len(trace) == 32 and len(span) == 16 and 0 <= took < 600 * 10**9, (trace, span, took)
                about = " ".join(f"{key}={value}" for key, value in sorted(about.items()))
                lines.append(f"span [{name}] {KINDS[kind]} trace={trace} span={span} parent={parent or '-'} error={code} {message} {about}")
        else:
            for name, kind, labels, value in metrics(body):
                labels = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
                lines.append(f"metric {name}{{{labels}}} {kind} {value}")
        # One write: the test may look at any time.
        os.write(1, ("\n".join(lines) + "\n").encode())


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()
