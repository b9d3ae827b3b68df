package attach

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/hook"
)

// Netfilter remembers whether the kernel lists what is registered with netfilter. Where it
// does not, each question would have it look for a module.
type Netfilter struct{ silent atomic.Bool }

// The kernel's numbers of the dump of hooks (include/uapi/linux/netfilter/nfnetlink.h and
// nfnetlink_hook.h).
const (
	subsystemHook                       = 12
	hookNumber, hookPriority, hookChain = 1, 2, 6
	chainDescription, chainType         = 1, 2
	typeBPF, descriptionProgram         = 2, 1
)

// Registered returns the BPF programs that netfilter runs at the hook of an attachment, by
// priority. The info of a link does not tell whether somebody detached it. It is not known
// where the kernel was built without CONFIG_NETFILTER_NETLINK_HOOK, or the namespace is not
// found.
func Registered(a plan.Attachment, host Host) (programs map[int32]ebpf.ProgramID, known bool) {
	if host.Netfilter == nil || host.Netfilter.silent.Load() {
		return nil, false
	}
	found, err := Find(a, host)
	if err != nil {
		return nil, false
	}
	defer found.Close()
	err = found.within(a.NetworkNamespace, func() error {
		programs, err = registered(a)
		return err
	})
	temporary := errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EMFILE) ||
		errors.Is(err, ErrTarget)
	if err != nil && !temporary {
		host.Netfilter.silent.Store(true)
	}
	return programs, err == nil
}

// registered asks the network namespace of the thread.
func registered(a plan.Attachment) (map[int32]ebpf.ProgramID, error) {
	request := nl.NewNetlinkRequest(subsystemHook<<8, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(hook.NetfilterFamilies()[a.Netfilter.Family])})
	at := slices.Index(hook.NetfilterHooks(), a.Netfilter.Hook)
	request.AddData(nl.NewRtAttr(hookNumber, binary.BigEndian.AppendUint32(nil, uint32(at))))
	programs := map[int32]ebpf.ProgramID{}
	return programs, dump(request, func(body []byte) {
		one := attributes(body)
		chain := attributes(one[hookChain])
		if number(chain[chainType]) == typeBPF {
			programs[int32(number(one[hookPriority]))] = ebpf.ProgramID(number(attributes(chain[chainDescription])[descriptionProgram]))
		}
	})
}

// dump calls each with the attributes of every answer. The library's own way passes over
// them: this dump does not say to whom it goes.
func dump(request *nl.NetlinkRequest, each func([]byte)) error {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := errors.Join(s.SetReceiveTimeout(&unix.Timeval{Sec: 1}), s.Send(request)); err != nil {
		return err
	}
	for {
		messages, _, err := s.Receive()
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
				return netlink.ErrDumpInterrupted
			case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
				return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			case m.Header.Type == unix.NLMSG_ERROR || m.Header.Type == unix.NLMSG_DONE:
				return nil
			case len(m.Data) >= nl.SizeofNfgenmsg:
				each(m.Data[nl.SizeofNfgenmsg:])
			}
		}
	}
}

// attributes are those of a message or of one of its attributes, by their types.
func attributes(body []byte) map[uint16][]byte {
	all := map[uint16][]byte{}
	found, err := nl.ParseRouteAttr(body)
	if err != nil {
		return all
	}
	for _, one := range found {
		all[one.Attr.Type&^unix.NLA_F_NESTED] = one.Value
	}
	return all
}

func number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}
