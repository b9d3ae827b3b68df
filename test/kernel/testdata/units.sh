#!/bin/bash
# What a user of docs/user-space.md does once the units are in place. TestTheUnitsOfThePages reads what it prints.
exec >/dev/console 2>&1
echo "SKEP-VM begin units"

# until repeats a command until it succeeds, a minute at most.
until_is() {
	for ((i = 0; i < 60; i++)); do "$@" >/dev/null 2>&1 && return; sleep 1; done
	echo "GAVE UP: $*"
	journalctl -q --no-pager -o cat -n 40 -u skep -u packet-exporter
	echo "SKEP-VM end units 1"
	systemctl poweroff --force --force
}
said() { journalctl -q --no-pager -u packet-exporter -o cat -n 3; }
says() { said | grep -q "$1"; }
send() { for ((i = 0; i < $1; i++)); do echo x >/dev/udp/127.0.0.1/9; done; }

grep -h . /proc/1/comm
groupadd --system metrics
systemctl daemon-reload
systemctl start skep packet-exporter
until_is says '^packets'
send 7
until_is says '^packets [1-9]'
echo "counted: $(said | grep -c '^packets [1-9]' >/dev/null && echo yes)"
systemctl is-active run-skep-maps-.bpf.mount skep packet-exporter
grep -E 'Uid|Groups|CapEff|Seccomp:' "/proc/$(systemctl show -p MainPID --value packet-exporter)/status"
grep -E 'CapEff' "/proc/$(systemctl show -p MainPID --value skep)/status"

pid=$(systemctl show -p MainPID --value packet-exporter)
systemctl restart skep
until_is skep status
echo "same reader: $([ "$pid" = "$(systemctl show -p MainPID --value packet-exporter)" ] && echo yes)"

# without starts the reader with other lines in its unit, and shows what it says.
without() {
	mkdir -p /run/systemd/system/packet-exporter.service.d
	printf '[Service]\n%b\n' "$1" >/run/systemd/system/packet-exporter.service.d/without.conf
	systemctl daemon-reload && systemctl restart packet-exporter
	until_is says 'open map'
	said | grep 'open map'
	rm -r /run/systemd/system/packet-exporter.service.d
	systemctl daemon-reload && systemctl restart packet-exporter
	until_is says '^packets'
}
without 'SupplementaryGroups='
without 'SystemCallFilter=\nSystemCallFilter=@system-service\nSystemCallErrorNumber=EPERM'

sed -i 's/^    counts:/    counts:\n      maxEntries: 2/' /srv/defs/counter.yaml
until_is grep -q '"generation": 2' /run/skep/maps/counter/maps.json
until_is says '^packets 0'
send 3
until_is says '^packets [1-9]'
echo "a map anew: $(says '^packets [1-9]' && echo yes)"

sed -i '/export:/d;/groups:/d' /srv/defs/counter.yaml
until_is says 'not granted'
said | grep -m1 'not granted'
systemctl is-active packet-exporter

echo "SKEP-VM end units 0"
echo "SKEP-VM end all"
systemctl poweroff --force --force
