#!/bin/bash
# The network of one node, apart from its process: addresses, and the rules that cut and slow it, outlive a killed node.
# Its queue volume is mounted here too: tmpfs lives as long as somebody has it mounted.
trap 'exit 0' TERM INT
sleep infinity &
wait
