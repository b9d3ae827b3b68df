package clsact

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Subscribe sends a value for each change of a qdisc or filter in this network namespace, until
// done is closed. It closes the channel where the kernel ends the subscription.
func Subscribe(changes chan<- struct{}, done <-chan struct{}) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return err
	}
	go func() {
		<-done
		s.Close()
	}()
	go func() {
		defer close(changes)
		for {
			if _, _, err := s.Receive(); err != nil {
				return
			}
			select {
			case changes <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	return nil
}
