// Command pause holds the namespaces of a Pod until it is told to end. It is all
// there is in the node's sandbox image, and owns nothing.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
